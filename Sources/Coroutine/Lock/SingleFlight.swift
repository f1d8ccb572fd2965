/// Lets those who ask for the same thing at the same time share one way of getting it.
///
/// ```swift
/// let lookups = SingleFlight<String, Address>()
/// let address = try lookups.run(host) { try resolve(host) }
/// ```
///
/// The first who asks for a key starts a flight: a job that runs its body. Who asks for the same key before it has landed
/// waits for that job, and all get what it returns or throws. Nothing is remembered: who comes later starts anew.
///
/// A caller that is cancelled throws at once and leaves the flight to the others. When the last has gone, the flight is cancelled.
public final class SingleFlight<Key: Hashable & Sendable, Value: Sendable>: @unchecked Sendable {
  // Sound because what changes is under the lock.
  //
  // A table of flights, by the hashes of their keys.
  //
  //   --the first caller--> LISTED --forget--> UNLISTED      (nobody joins any more; its callers still wait for it)
  //                           |                   |
  //                           +--its body ends----+--> LANDED
  //                           +--its last caller leaves--> LANDED, and its job is cancelled
  //
  // Invariants
  //  1. A flight is in the table while it is LISTED, and there is one for a key at most: it is put in under the lock, and
  //     only if nothing was put in since the table was searched.
  //  2. `callers` is how many have joined and not left; under the lock. It is above zero until the flight has LANDED.
  //  3. Hashing and comparing keys, and destroying them, are foreign code, so none of it happens under the lock: the table's own
  //     keys are hash values, what is found is held beyond the lock, and comparisons are made on what was copied out.
  //
  // Who wins a race
  //   joining against landing             Both change the table under the lock. Joined first: the caller waits for the job, which
  //                                       settles later. Landed first: it is not found, and another takes off.
  //   joining against the last one's leaving   The same. Who leaves last takes the flight out of the table and cancels its
  //                                       job; who joined before that is a caller, so the one who left was not the last.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var table: [Int: [Flight]] = [:]
  @exclusivity(unchecked) private var departures = 0

  private final class Flight: @unchecked Sendable {
    // Sound because all that changes is under the lock of the table, once the flight is in it.
    let key: Key
    let hash: Int
    @exclusivity(unchecked) var callers = 1
    @exclusivity(unchecked) var isListed = true
    /// Set until LANDED.
    ///
    /// The job holds the flight, so this must go, or neither would.
    @exclusivity(unchecked) var job: Job<Value>?

    init(_ key: Key, _ hash: Int) {
      self.key = key
      self.hash = hash
    }
  }

  /// Creates one with nothing in the air.
  public init() {}

  /// Runs `body` for `key`, or waits for the one that runs already; answers what it returns, throws what it throws.
  ///
  /// Suspends until then. `body` runs as a job of its own, on the queue of the caller that started it. Cancelled, before or while
  /// it waits, it throws; the last caller to leave cancels the job. A body that asks for its own key gets
  /// ``CoroutineError/wouldDeadlock``; off a coroutine it throws ``CoroutineError/notInCoroutine``.
  public func run(_ key: Key, _ body: @escaping @Sendable () throws -> Value) throws -> Value {
    _ = try Carrier.beginWaiting()
    let (flight, job) = board(key, body)
    defer { leave(flight) }
    return try job.join()
  }

  /// Who asks for `key` from now on starts anew, though a flight may be under way; those who wait for that one still
  /// get its result.
  ///
  /// Never suspends; anywhere.
  public func forget(_ key: Key) {
    let hash = key.hashValue
    if let flight = search(hash).flights.first(where: { $0.key == key }) {
      lock.withLock { unlist(flight) }
    }
  }

  // MARK: The table

  private func board(_ key: Key, _ body: @escaping @Sendable () throws -> Value) -> (Flight, Job<Value>) {
    let hash = key.hashValue
    while true {
      let (flights, departures) = search(hash)
      if let flight = flights.first(where: { $0.key == key }) {
        if let job = join(flight) { return (flight, job) }
        continue
      }
      // Lazy, because it is not known yet whether it will be needed: the first join starts it.
      let flight = Flight(key, hash)
      let job = co_launch(name: "single flight", start: .lazy) {
        defer { self.land(flight) }
        return try body()
      }
      if depart(flight, job, after: departures) { return (flight, job) }
    }
  }

  private func search(_ hash: Int) -> (flights: [Flight], departures: Int) {
    lock.lock()
    defer { lock.unlock() }
    return (table[hash] ?? [], departures)
  }

  private func join(_ flight: Flight) -> Job<Value>? {
    lock.lock()
    defer { lock.unlock() }
    guard flight.isListed else { return nil }
    flight.callers += 1
    return flight.job
  }

  /// False: something was put into the table since it was searched, perhaps a flight for the same key.
  private func depart(_ flight: Flight, _ job: Job<Value>, after seen: Int) -> Bool {
    lock.lock()
    defer { lock.unlock() }
    guard departures == seen else { return false }
    departures += 1
    flight.job = job
    table[flight.hash, default: []].append(flight)
    return true
  }

  private func leave(_ flight: Flight) {
    lock.lock()
    flight.callers -= 1
    let deserted = flight.callers == 0 ? takeJob(of: flight) : nil
    lock.unlock()
    deserted?.cancel()
  }

  private func land(_ flight: Flight) {
    lock.lock()
    let job = takeJob(of: flight)
    lock.unlock()
    withExtendedLifetime(job) {}
  }

  /// Under the lock: the flight has landed.
  ///
  /// Answers its job, which must not be released there.
  private func takeJob(of flight: Flight) -> Job<Value>? {
    unlist(flight)
    return flight.job.take()
  }

  /// Under the lock.
  private func unlist(_ flight: Flight) {
    guard flight.isListed else { return }
    flight.isListed = false
    table[flight.hash]?.removeAll { $0 === flight }
    if table[flight.hash]?.isEmpty == true { table[flight.hash] = nil }
  }
}
