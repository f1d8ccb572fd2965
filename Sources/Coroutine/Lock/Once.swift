internal import CCoroutineRuntime
import Synchronization

/// Runs a body once for all callers, and keeps the result.
///
/// ```swift
/// let configuration = Once<Configuration>()
/// let settings = try configuration.run { try load() }     // anywhere, any number of times
/// ```
///
/// The first caller runs its body on its own stack. Callers that come meanwhile wait, and get the result. The effect of
/// a body that throws is chosen at the creation. All callers get the same value, so values are Sendable.
public final class Once<Value: Sendable>: @unchecked Sendable {
  // Sound because of the first invariant.

  /// The effect of a body that throws.
  public struct Failure: Sendable, Hashable, CustomStringConvertible {
    let isResult: Bool

    /// The caller gets the error; the next caller, first come, first served, runs its own body.
    public static var retries: Failure { Failure(isResult: false) }
    /// The error is the result: all callers get it, now and later.
    public static var isKept: Failure { Failure(isResult: true) }

    /// `retries` or `isKept`.
    public var description: String { isResult ? "isKept" : "retries" }
  }

  // A mutex around the result.
  //
  //   EMPTY --the first caller locks the mutex--> RUNNING --returns--> DONE for ever
  //     ^                                            |------throws, isKept--> DONE for ever
  //     +--------------------------------------------+------throws, retries, or cancelled
  //
  // Invariants
  //  1. `outcome` is written once, with the mutex held, before `isDone` is set (release). It is read after `isDone` was
  //     seen (acquire), or with the mutex held.
  //  2. A body runs with the mutex held. So at most one body runs at a time, waiters are served in order, a cancelled
  //     waiter leaves the queue, and a body that calls its own Once holds the mutex already.
  private let mutex = FairMutex()
  private let isDone = Shared(Atomic<Bool>(false))
  @exclusivity(unchecked) private var outcome: Result<Value, any Error>?
  private let failure: Failure

  /// Creates a Once that has not run.
  public init(afterFailure failure: Failure = .retries) {
    self.failure = failure
    mutex.permit.pointee.isOfOnce = true
  }

  /// Gives the Once a name, which dumps show: `Once "configuration" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The Once.
  @discardableResult
  public func named(_ name: String) -> Once {
    mutex.named(name)
    return self
  }

  /// The result; nil before the end of the first run, and if the result is a kept error.
  public var value: Value? { isDone.touched.load(ordering: .acquiring) ? try? outcome?.get() : nil }

  /// Runs `body` unless there is a result already, and returns the result.
  ///
  /// Suspends while another caller's body runs; `body` itself may suspend. If the coroutine is cancelled, before or
  /// during the wait, it throws. A body that ends because its caller is cancelled does not count: the next caller runs
  /// its own, also with `isKept`.
  ///
  /// Bodies that wait for one another in a circle, directly or through joins and scopes, wait until one is cancelled.
  /// ``CoroutineRuntime/onDeadlock(_:)`` and ``CoroutineRuntime/deadlocks()`` report the circle.
  /// - Throws: The error of the body; the cancellation error; ``CoroutineError/wouldDeadlock`` if called by its own
  ///   body; ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func run(_ body: () throws -> Value) throws -> Value {
    _ = try Carrier.beginWaiting()
    // Known: a wait for an unknown source depends on every other step.
    if isDone.known.load(ordering: .acquiring), let outcome { return try outcome.get() }
    if !mutex.tryLock() { try lockContended() }
    defer { mutex.unlock() }
    if let outcome { return try outcome.get() }
    do {
      let value = try body()
      settle(.success(value))
      return value
    } catch {
      if failure.isResult, !(error is CancellationError), !co_isCancelled { settle(.failure(error)) }
      throw error
    }
  }

  /// Waits for the coroutine that runs its body.
  private func lockContended() throws {
    if mutex.isHeldByCaller { throw CoroutineError.wouldDeadlock(because: .runsOnce) }
    try mutex.lock()
  }

  private func settle(_ result: Result<Value, any Error>) {
    outcome = result
    cco_order_retains()
    isDone.touched.store(true, ordering: .releasing)
  }
}

// MARK: - SingleFlight

/// Lets simultaneous callers with the same key share one execution.
///
/// ```swift
/// let lookups = SingleFlight<String, Address>()
/// let address = try lookups.run(host) { try resolve(host) }
/// ```
///
/// The first caller for a key starts a flight: a job that runs its body. A caller for the same key that comes before
/// the flight has ended waits for that job, and all callers get what it returns or throws, so values are Sendable. No
/// result is kept: a later caller starts a new flight.
///
/// A cancelled caller throws at once and leaves the flight to the others. When the last caller has left, the flight is
/// cancelled.
///
/// A flight belongs to no scope. So it has no deadline of a caller, and ``co_isStopping`` is false in it: put
/// `co_timeout` into the body, and check for a stop before the call.
///
/// Flights that wait for one another in a circle, directly or through joins, scopes and bodies of ``Once``, wait until
/// one of them is cancelled. ``CoroutineRuntime/onDeadlock(_:)`` and ``CoroutineRuntime/deadlocks()`` report the
/// circle; a `co_timeout` in the body ends it, and ``forget(_:)`` lets later callers start anew.
public final class SingleFlight<Key: Hashable & Sendable, Value: Sendable>: @unchecked Sendable {
  // Sound because all that changes is accessed under the lock.
  //
  // A table of flights, by the hashes of their keys.
  //
  //   --the first caller--> LISTED --forget--> UNLISTED      (no caller joins any more; its callers still wait for it)
  //                           |                   |
  //                           +--its body ends----+--> LANDED
  //                           +--its last caller leaves--> LANDED, and its job is cancelled
  //
  // Invariants
  //  1. A flight is in the table while it is LISTED, and there is at most one per key: it is added under the lock, and
  //     only if nothing was added since the table was searched.
  //  2. `callers` is the number of callers that have joined and not left; accessed under the lock. It is above zero
  //     until the flight has LANDED.
  //  3. Hashing, comparing and destroying keys are foreign code and never happen under the lock: the table's own keys
  //     are hash values, found flights are held beyond the lock, and keys are compared in a copy.
  //
  // Races
  //   joining against landing      Both change the table under the lock. Joined first: the caller waits for the job,
  //                                which settles later. Landed first: the flight is not found, and another one starts.
  //   joining against the last     The same. The last caller to leave removes the flight and cancels its job; a caller
  //   caller's leaving             that joined before is counted, so the other one was not the last.
  private let lock = Shared<ThreadLock>()
  @exclusivity(unchecked) private var table: [Int: [Flight]] = [:]
  @exclusivity(unchecked) private var departures = 0

  private final class Flight: @unchecked Sendable {
    // Sound because all that changes is accessed under the table's lock, once the flight is in the table.
    let key: Key
    let hash: Int
    @exclusivity(unchecked) var callers = 1
    @exclusivity(unchecked) var isListed = true
    /// Whether more than one caller has come.
    @exclusivity(unchecked) var isShared = false
    /// Set until LANDED.
    ///
    /// The job holds the flight, so this reference must end, or neither is released.
    @exclusivity(unchecked) var job: Job<Value>?

    init(_ key: Key, _ hash: Int) {
      self.key = key
      self.hash = hash
    }
  }

  /// Creates a SingleFlight without any flight.
  public init() {}

  /// Runs `body` for `key`, or waits for the flight that runs already, and returns its result.
  ///
  /// Suspends until the flight has ended. `body` runs as a job of its own, on the queue of the caller that started it.
  /// If the coroutine is cancelled, before or during the wait, it throws; the last caller to leave cancels the job.
  /// - Throws: The error of the body; the cancellation error; ``CoroutineError/wouldDeadlock`` if a body calls this for
  ///   its own key; ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func run(_ key: Key, _ body: @escaping @Sendable () throws -> Value) throws -> Value {
    try runShared(key, body).value
  }

  /// Runs `body` for `key` as ``run(_:_:)`` does, and says whether the result is shared.
  ///
  /// - Returns: The result of the flight, and whether more than one caller has come for it. All its callers get the
  ///   same answer, unless one comes after another has returned.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func runShared(
    _ key: Key,
    _ body: @escaping @Sendable () throws -> Value
  ) throws -> (value: Value, isShared: Bool) {
    _ = try Carrier.beginWaiting()
    let (flight, job) = board(key, body)
    defer { leave(flight) }
    if Carrier.current?.pointee.job == job.record { throw CoroutineError.wouldDeadlock(because: .fliesItself) }
    let value = try job.join()
    return (value, lock.withLock { flight.isShared })
  }

  /// Makes later callers for `key` start a new flight, even if one is running; the callers that wait for that one still
  /// get its result.
  ///
  /// Never suspends; any thread, coroutine or not.
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
      // Lazy, because it may not be needed: the first join starts it.
      let flight = Flight(key, hash)
      let job = co_launch(name: "single flight", start: .lazy) {
        defer { self.land(flight) }
        return try body()
      }
      if depart(flight, job, after: departures) { return (flight, job) }
    }
  }

  private func search(_ hash: Int) -> (flights: [Flight], departures: Int) {
    lock.withLock { (table[hash] ?? [], departures) }
  }

  private func join(_ flight: Flight) -> Job<Value>? {
    lock.lock()
    defer { lock.unlock() }
    guard flight.isListed else { return nil }
    flight.callers += 1
    flight.isShared = true
    return flight.job
  }

  /// Adds the flight; returns false if the table has changed since it was searched, perhaps by a flight for the same
  /// key.
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
    let deserted = lock.withLock {
      flight.callers -= 1
      return flight.callers == 0 ? takeJob(of: flight) : nil
    }
    deserted?.cancel()
  }

  private func land(_ flight: Flight) {
    withExtendedLifetime(lock.withLock { takeJob(of: flight) }) {}
  }

  /// Ends the flight, under the lock.
  ///
  /// Returns its job, which must not be released under the lock.
  private func takeJob(of flight: Flight) -> Job<Value>? {
    unlist(flight)
    return flight.job.take()
  }

  /// Removes the flight from the table, under the lock.
  private func unlist(_ flight: Flight) {
    guard flight.isListed else { return }
    flight.isListed = false
    table[flight.hash]?.removeAll { $0 === flight }
    if table[flight.hash]?.isEmpty == true { table[flight.hash] = nil }
  }
}
