import Coroutine
import Glibc
import Synchronization

// Name lookups by the system's resolver, on threads of their own.
//
// getaddrinfo blocks its thread, and nothing can end it: with a name server that does not answer, it returns after the
// resolver's timeouts, 10 to 30 seconds with the usual settings. So lookups have a pool of their own (BlockingPool):
// - A lookup never takes a thread that `co_blocking` needs.
// - At most `limit` lookups run at once; the others are queued. A lookup that is given up in the queue is removed from
//   it at once, and never begins.
// - A lookup that is given up after it has begun keeps its thread until the resolver returns, and counts until then.
//   Without a limit, each attempt to reach a lost name server would leave one more thread.
//
// Names that many ask for. One lookup of a name is under way at a time, its flight: the first coroutine that asks leads
// it, and those that ask meanwhile wait for its end. What it has found is used for a second.
//
//   no flight --a coroutine asks--> QUEUED --a thread begins it--> BEGUN --it ends--> the outcome is there, no flight
//                                     |
//                                     +--its leader gives up-----> LEFT   no outcome: those that wait ask anew
//
// Invariants
//  1. A flight leaves QUEUED by one exchange of its word: the thread's, which then asks, or the leader's. So a lookup
//     that was given up never asks, and one that asks has an outcome for all that wait, also without its leader.
//  2. Who has won that exchange ends the flight, once: takes it out of the table, and then wakes those that wait. So no
//     coroutine begins to wait for a flight that has ended.
//  3. The table of what was found has at most `mostKnown` names.
//
// Names of this machine. When all threads are taken, perhaps by names whose servers are silent, those of /etc/hosts are
// looked up on a second, small pool, which first looks whether a name is there. Numbers ask nothing.

final class Resolver: Sendable {
  static let shared = Resolver()

  /// As many as `co_blocking` has on most machines: a lookup waits, and its thread costs little.
  static var limit: Int { 64 }

  /// How long what was found is used, in ns: getaddrinfo tells no time to live.
  static var timeKept: UInt64 { 1_000_000_000 }
  static var mostKnown: Int { 1_000 }

  let pool: BlockingPool
  private let local = BlockingPool(limit: 2, call: "SocketAddress.resolve", threadName: "co-lookup")
  private let limit: Int
  private let state = ThreadMutex(State())
  private let now: @Sendable () -> UInt64
  private let ask: @Sendable (_ host: String) throws -> [SocketAddress]

  private struct State {
    var flights: [String: Flight] = [:]
    var known: [String: (addresses: [SocketAddress], end: UInt64)] = [:]
  }

  private final class Flight: Sendable {
    enum Stage { static let queued = 0, begun = 1, left = 2 }
    let stage = Atomic<Int>(Stage.queued)
    let end: WaitGroup
    /// Nil after the end means that the flight was left.
    let outcome = ThreadMutex<Result<[SocketAddress], any Error>?>(nil)

    init(_ host: String) {
      end = WaitGroup().named("the lookup of \(host)")
      end.add()
    }

    func leave(for stage: Int) -> Bool {
      self.stage.compareExchange(expected: Stage.queued, desired: stage, ordering: .acquiringAndReleasing).exchanged
    }
  }

  /// Creates a resolver; tests replace the limit, what blocks, and the clock.
  init(
    limit: Int = Resolver.limit,
    asking ask: @escaping @Sendable (_ host: String) throws -> [SocketAddress] = { try Resolver.askSystem($0) },
    now: @escaping @Sendable () -> UInt64 = { CallerClock.now }
  ) {
    pool = BlockingPool(limit: limit, call: "SocketAddress.resolve", threadName: "co-lookup")
    self.limit = limit
    self.now = now
    self.ask = ask
  }

  /// The number of names that are looked up, and of those that are known.
  var counts: (flights: Int, known: Int) { state.withLock { ($0.flights.count, $0.known.count) } }

  /// Suspends until a thread has looked the name up, unless that was done a moment ago.
  ///
  /// Throws the cancellation error at once.
  func resolve(_ host: String, port: UInt16) throws -> [SocketAddress] {
    if let number = Self.number(host) { return number.map { $0.with(port: port) } }
    while true {
      switch enter(host) {
      case .known(let addresses): return addresses.map { $0.with(port: port) }
      case .leads(let flight, let isFull):
        return try lead(flight, host, isFull).map { $0.with(port: port) }
      case .follows(let flight):
        try flight.end.wait()
        guard let outcome = flight.outcome.withLock({ $0 }) else { continue }
        return try outcome.get().map { $0.with(port: port) }
      }
    }
  }

  private enum Entry {
    case known([SocketAddress])
    case leads(Flight, isFull: Bool)
    case follows(Flight)
  }

  private func enter(_ host: String) -> Entry {
    let now = now()
    return state.withLock { state in
      if let known = state.known[host], now < known.end { return .known(known.addresses) }
      if let flight = state.flights[host] { return .follows(flight) }
      let flight = Flight(host)
      let isFull = state.flights.count >= limit
      state.flights[host] = flight
      return .leads(flight, isFull: isFull)
    }
  }

  private func lead(_ flight: Flight, _ host: String, _ isFull: Bool) throws -> [SocketAddress] {
    do {
      if isFull, let found = try local.run({ [self] in HostsFile.has(host) ? try begin(flight, host) : nil }) {
        return found
      }
      return try pool.run { [self] in try begin(flight, host) }
    } catch {
      if flight.leave(for: Flight.Stage.left) { end(flight, host, nil) }
      throw error
    }
  }

  /// Looks the name up for all that wait; called on a thread of a pool.
  private func begin(_ flight: Flight, _ host: String) throws -> [SocketAddress] {
    guard flight.leave(for: Flight.Stage.begun) else { throw CancellationError() }
    let outcome = Result { try ask(host) }
    end(flight, host, outcome)
    return try outcome.get()
  }

  private func end(_ flight: Flight, _ host: String, _ outcome: Result<[SocketAddress], any Error>?) {
    let now = now()
    flight.outcome.withLock { $0 = outcome }
    state.withLock { state in
      state.flights[host] = nil
      guard case .success(let addresses) = outcome else { return }
      if state.known.count >= Self.mostKnown { state.known = state.known.filter { now < $0.value.end } }
      if state.known.count >= Self.mostKnown { state.known = [:] }
      state.known[host] = (addresses, now + Self.timeKept)
    }
    flight.end.done()
  }

  // MARK: The system's resolver

  /// The address of a host that is a number in one of the forms that the C library reads, as `127.1`; nil for names.
  private static func number(_ host: String) -> [SocketAddress]? {
    guard let first = host.utf8.first, first <= UInt8(ascii: "9") || host.utf8.contains(UInt8(ascii: ":")) else {
      return nil
    }
    // Asks nothing, so it does not block.
    return try? askSystem(host, AI_NUMERICHOST)
  }

  @Sendable
  private static func askSystem(_ host: String, _ flags: Int32 = 0) throws -> [SocketAddress] {
    var hints = addrinfo()
    // Without this, the list has each address once for each type of socket.
    hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
    hints.ai_flags = flags
    var found: UnsafeMutablePointer<addrinfo>?
    let code = getaddrinfo(host, nil, &hints, &found)
    let error = errno
    defer { if let found { freeaddrinfo(found) } }
    if code != 0, code != EAI_SYSTEM, flags & AI_NUMERICHOST == 0, let refusal = lackOfDescriptors {
      throw NetError(.unresolved(host, EAI_SYSTEM), code: refusal, "resolving")
    }
    guard code == 0 else { throw NetError(.unresolved(host, code), code: code == EAI_SYSTEM ? error : 0, "resolving") }
    var addresses: [SocketAddress] = []
    var entry = found
    while let current = entry {
      let address = current.pointee.ai_addr.flatMap { SocketAddress(system: $0, current.pointee.ai_addrlen) }
      if let address = address?.with(port: 0), !addresses.contains(address) { addresses.append(address) }
      entry = current.pointee.ai_next
    }
    guard !addresses.isEmpty else { throw NetError(.unresolved(host, EAI_NONAME), "resolving") }
    return addresses
  }

  /// EMFILE or ENFILE if no descriptor is free at this moment; nil if one is.
  ///
  /// The C library says of a name whose files or servers it could not open that there is no such name, or no answer.
  private static var lackOfDescriptors: Int32? {
    let probe = open("/dev/null", O_RDONLY | O_CLOEXEC)
    if probe >= 0 { close(probe) }
    return probe < 0 && (errno == EMFILE || errno == ENFILE) ? errno : nil
  }
}

// MARK: - The names of this machine

/// The file that names the machine and its neighbours, which the system's resolver reads without asking anybody.
enum HostsFile {
  /// Whether the file has a name, or the name is one of the loopback (RFC 6761); blocks for a read of the file.
  @Sendable
  static func has(_ host: String) -> Bool {
    let host = host.lowercased()
    return host == "localhost" || host.hasSuffix(".localhost") || has(host, in: "/etc/hosts")
  }

  static func has(_ host: String, in path: String) -> Bool {
    guard let file = fopen(path, "re") else { return false }
    defer { fclose(file) }
    var line: UnsafeMutablePointer<CChar>?
    var room = 0
    defer { free(line) }
    while case let count = getline(&line, &room, file), count > 0, let line {
      let bytes = UnsafeRawBufferPointer(start: line, count: count).prefix { $0 != UInt8(ascii: "#") }
      let words = bytes.split { $0 <= 0x20 }
      if words.dropFirst().contains(where: { String(decoding: $0, as: UTF8.self).lowercased() == host }) { return true }
    }
    return false
  }
}
