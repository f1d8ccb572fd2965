#if Demo
import Coroutine
import CoroutineNet
import Histogram
import Synchronization

/// How much load, and of which kind.
struct LoadPlan: Sendable {
  var clients = 200
  /// How many messages each client sends.
  var messages = 50
  /// How many clients share a room.
  var roomSize = 10
  /// How many of its messages a client has under way: it sends the next one when an earlier one has come back.
  var window = 4
  /// How long a client waits for a line before it takes what is missing for lost.
  var timeout = Duration.seconds(10)
  /// How many connections are opened at once.
  var connecting = 64
  var retry = Retry()

  func room(of client: Int) -> Int { client / max(1, roomSize) }

  /// The clients that share the room of `client`.
  func members(with client: Int) -> Range<Int> {
    let first = room(of: client) * max(1, roomSize)
    return first..<min(first + max(1, roomSize), clients)
  }

  /// The options of a server of which only faults send a client away.
  var serverOptions: ChatOptions {
    var options = ChatOptions()
    options.limit = clients
    // A client that has received everything says nothing until all others have, or have given up after a silence.
    options.idle = max(options.idle, 86_400 + 2 * (timeout / .seconds(1)))
    // All messages that can be under way to a client, and as many notices.
    options.backlog = max(options.backlog, 2 * roomSize * window)
    return options
  }

  /// How many deliveries there are if nothing is lost.
  var deliveries: Int { (0..<clients).reduce(0) { $0 + members(with: $1).count * messages } }
}

/// What has happened so far; any thread may read it.
final class LoadCounters: Sendable {
  let connected = Atomic<Int>(0)
  let retries = Atomic<Int>(0)
  let delivered = Atomic<Int>(0)
}

/// A number of clients that talk to each other through a chat server, and check what they receive.
///
/// Every client goes through the same steps: connect, enter its room, wait for all others, send and receive, wait for
/// all others, leave. The members of a room get each other's messages, and their own.
final class ChatLoad: Sendable {
  /// A microsecond to a minute, with an error of 0.1 % at most.
  typealias Latencies = Histogram<UInt64>

  let plan: LoadPlan
  let counters = LoadCounters()
  private let connect: @Sendable () throws -> Connection
  private let clock: @Sendable () -> Duration
  private let gate: FairSemaphore
  /// Everybody is in its room, or has failed; everybody has received what there is, or has failed.
  private let entered: Latch
  private let finished: Latch
  private let state: Locked<State>

  private struct State: Sendable {
    var latencies = Latencies(lowestDiscernibleValue: 1, highestTrackableValue: 60_000_000)
    var begun: Duration?
    var ended: Duration = .zero
  }

  /// Creates a load whose clients use `connect`, and read the time from `clock`.
  init(
    _ plan: LoadPlan,
    clock: @escaping @Sendable () -> Duration = ChatLoad.now,
    connect: @escaping @Sendable () throws -> Connection
  ) {
    self.plan = plan
    self.connect = connect
    self.clock = clock
    gate = FairSemaphore(plan.connecting)
    entered = Latch(plan.clients)
    finished = Latch(plan.clients)
    state = Locked(State())
  }

  private static let start = ContinuousClock.now
  /// The time since the program's start.
  @Sendable static func now() -> Duration { ContinuousClock.now - start }

  /// Suspends until every client has ended.
  ///
  /// A client's failure ends that client alone, and is in the result.
  func run() throws -> LoadResult {
    let clients = (0..<plan.clients).map { LoadClient(number: $0, load: self) }
    let reports = try co_scope { scope in
      try clients.map { client in scope.launch(name: "client \(client.number)") { try client.run() } }
        .map { try $0.join() }
    }
    return state.withLock { state in
      LoadResult(plan, reports, state.latencies, state.ended - (state.begun ?? state.ended))
    }
  }

  // MARK: What the clients share

  var time: Duration { clock() }

  /// Connects, a few clients at a time, and again if it fails.
  func open() throws -> Connection {
    try plan.retry {
      // A server that has just begun, or that has too many clients for a moment.
      $0 is NetError || $0 is TimeoutError
    } report: { _, _ in
      counters.retries.add(1, ordering: .relaxed)
    } _: {
      try gate.acquire()
      defer { gate.release() }
      return try co_timeout(plan.timeout, connect)
    }
  }

  func enter() { entered.countDown() }
  func waitForEntered() throws { try entered.wait() }
  func finish() { finished.countDown() }
  func waitForFinished() throws { try finished.wait() }

  func begin() {
    let now = time
    state.withLock { $0.begun = min($0.begun ?? now, now) }
  }

  /// Counts a delivery.
  ///
  /// The lock is held for some nanoseconds; a histogram for each client would have 100 KB.
  func deliver(_ message: LoadMessage) {
    let now = time
    let latency = max(0, now / .microseconds(1) - Double(message.sent) / 1_000)
    state.withLock { state in
      state.latencies.record(UInt64(min(latency, 60_000_000)))
      state.ended = max(state.ended, now)
    }
    counters.delivered.add(1, ordering: .relaxed)
  }
}
#endif
