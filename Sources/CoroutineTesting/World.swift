public import Coroutine
import CoroutineNet

/// One deterministic world: it runs coroutines in virtual time, on the calling thread, in an order that a seed
/// determines.
///
/// Every queue that a coroutine of the world names, the worker pool, timers, clocks, `co_blocking(_:)`, locks and the
/// choices of `co_select(biased:_:)` are the world's. Nothing is injected: the code under test does not change.
///
/// - Time does not pass while anything can run. Then it moves to the next timer.
/// - A body of co_blocking runs on the world's thread, at a chosen point, outside any coroutine.
/// - A wait for the real world throws ``RealWaitError``, unless it is inside ``outside(_:)``. It also fails the run if
///   the code under test catches the error.
/// - The parts of a Task that `co_await(_:)` starts run on the world's thread, at chosen points. The Task
///   may await only what the world provides. A sleep of Swift's is a real wait, and so is a real thread that resumes
///   the Task.
/// - Threads and Tasks that the code starts itself are not in the world. The world's thread is on no queue: in code
///   that runs on a queue of the world, `dispatchPrecondition(condition: .onQueue(_:))` traps.
///
/// In a test with the trait `simulated`, ``current`` is the world of the run:
///
/// <!-- compiled: Tests/CoroutineTestingTests/NetworkSnippets.swift -->
/// ```swift
/// let world = try #require(World.current)
/// world.network.host("site.example") {
///   try Server.run(.any(port: 80)) { connection in try connection.write("hello\n".utf8) }
/// }
/// try world.settle()  // until the server listens
/// let connection = try Connection.connect(host: "site.example", port: 80)
/// ```
///
/// Worlds are independent: tests that run in parallel each have their own.
public final class World: Sendable {
  private struct State: Sendable {
    var core: SimulatedWorld?
    var fingerprint: UInt64 = 0
  }

  private let state = Guarded(State())
  private let seed: UInt64?

  /// Creates a world; without a seed its order is first in, first out.
  public init(seed: UInt64? = nil) { self.seed = seed }

  /// The world of the calling coroutine, nil outside.
  public static var current: World? { SimulatedWorld.current?.owner as? World }

  /// Runs `body`, and all coroutines that it launches, as coroutines of the world.
  ///
  /// Blocks the calling thread, which runs all of them; any thread. After the end of
  /// `body`, the other coroutines run on as long as no time passes. Those that are left then, or after a failure, are
  /// cancelled, and end before this function returns.
  /// - Throws: The error of the body; ``DeadlockError``, ``LeftRunningError``, ``RealWaitError``, ``TimeLimitError``,
  ///   ``UnhandledError`` or ``UnknownHostError``.
  public func run<R: Sendable>(_ body: @escaping @Sendable () throws -> R) throws -> R {
    let policy = RunPolicy(seed.map { RandomChooser(seed: $0) } ?? Chooser())
    return try run(policy, seed: seed ?? 0, isTraced: false, body)
  }

  func run<R: Sendable>(
    _ policy: RunPolicy,
    seed: UInt64,
    isTraced: Bool,
    timeLimit: Duration? = nil,
    mostSteps: Int = 10_000_000,
    takesTasks: Bool = false,
    _ body: @escaping () throws -> R
  ) throws -> R {
    try prepared(policy, seed, isTraced: isTraced, timeLimit, mostSteps) { core in
      let tasks = takesTasks ? try AsyncTasks.begin(core, policy, seed, locks: false) : nil
      core.tasks = tasks
      defer { tasks?.end() }
      let value = try core.run { [network] in
        network.begin()
        defer { network.stop() }
        let value = try body()
        // Not after an error, because an error may be the reason why a host was not added.
        network.requireHostsOfLinks()
        return value
      }
      try tasks?.requireNoneLeft()
      return value
    }
  }

  /// Calls `body` with the core of the world.
  func prepared<R>(
    _ policy: RunPolicy,
    _ seed: UInt64,
    isTraced: Bool,
    _ timeLimit: Duration?,
    _ mostSteps: Int,
    _ body: (SimulatedWorld) throws -> R
  ) throws -> R {
    let core = SimulatedWorld(owner: self, policy: policy, seed: seed)
    core.isTraced = isTraced
    core.mostSteps = mostSteps
    if let timeLimit { core.timeLimit = UInt64(max(0, timeLimit.nanoseconds)) }
    if policy.chooser.tracksSharing { core.footprints = Footprints() }
    network.join(core)
    // As what it is for CoroutineNet, which casts it: a linker leaves out a conformance in an archive that nothing
    // names.
    let simulated: any SimulatedNetwork = network
    core.network = simulated
    state.withLock { $0.core = core }
    defer {
      // The network holds its world.
      core.network = nil
      network.end()
    }
    defer { state.withLock { $0.fingerprint = policy.fingerprint } }
    policy.chooser.begin(seed)
    return try body(core)
  }

  /// The time that has passed in the world since it began; zero before.
  ///
  /// Any thread; does not suspend.
  public var now: Duration { .nanoseconds(Int64(state.withLock { $0.core?.elapsed ?? 0 })) }

  /// The network that the sockets of CoroutineNet use in this world.
  public let network = Network()

  /// The number of steps that the world has taken.
  var stepCount: Int { state.withLock { $0.core?.steps ?? 0 } }

  /// Whether code of the world has declared that it waits for the real world.
  var waitsOutside: Bool { state.withLock { $0.core?.hasDeclared ?? false } }

  var endDump: String { state.withLock { $0.core?.endDump ?? "" } }

  /// A hash of the choices: two runs with the same choices of the same coroutines have equal fingerprints.
  ///
  /// Valid after ``run(_:)`` has ended; any thread.
  public var fingerprint: UInt64 { state.withLock { $0.fingerprint } }

  /// Waits until `duration` has passed in the world, and then until no other coroutine can run.
  ///
  /// Suspends the calling coroutine, which must be one of this world. If it is cancelled, it throws.
  /// - Throws: The cancellation error; `CoroutineError.notInCoroutine` outside this world.
  public func advance(by duration: Duration) throws {
    let core = try inside()
    // By the world's clock, also when a host calls.
    try Network.here.withValue(nil) { try co_delay(duration) }
    try core.settle()
  }

  /// Waits until no other coroutine can run without time passing.
  ///
  /// Suspends the calling coroutine, which must be one of this world. If it is cancelled, it throws.
  /// - Throws: The cancellation error; `CoroutineError.notInCoroutine` outside this world.
  public func settle() throws { try inside().settle() }

  /// Allows failures that nothing observes from here on: they go to `CoroutineRuntime.unhandledErrorHandler`.
  ///
  /// Without this, the first one fails the run, with ``UnhandledError``, unless the body itself throws. Failures of
  /// coroutines that end because their host has crashed are always allowed. Never suspends; outside a world it has no
  /// effect.
  /// - Parameter isAllowed: Whether a failure is allowed; called on the world's thread, and must not wait.
  public static func allowUnhandledErrors(
    where isAllowed: @escaping @Sendable (CoroutineRuntime.UnhandledError) -> Bool = { _ in true }
  ) {
    SimulatedWorld.current?.allowsUnhandled = isAllowed
  }

  private func inside() throws -> SimulatedWorld {
    guard let core = state.withLock({ $0.core }), SimulatedWorld.current === core else {
      throw CoroutineError.notInCoroutine
    }
    return core
  }

  /// Runs `body`, whose waits may be for the real world: a descriptor, a Task, a callback of a real thread, a coroutine
  /// outside of the world.
  ///
  /// While only such waits are left, the world blocks its thread, and its time does not pass. A wait in `body` for an
  /// object that real threads have as well, a channel or a promise for example, comes after the passing of time: when
  /// nothing else is left, the world blocks its thread for it, for up to ten seconds of the real world, and then fails
  /// with ``DeadlockError``. Inside `body`, co_blocking uses real threads. All that holds for the coroutines that
  /// `body` launches too, also after its end. Outside a world, the function only calls `body`. It does not suspend by
  /// itself, and does not check cancellation.
  /// - Throws: The error of `body`.
  public static func outside<R, Failure>(_ body: () throws(Failure) -> R) throws(Failure) -> R {
    guard let core = SimulatedWorld.current else { return try body() }
    return try core.outside(body)
  }
}
