import Coroutine
import Synchronization

/// One deterministic world: it runs coroutines in virtual time, on the calling thread, in an order that a seed
/// determines.
///
/// Every queue that a coroutine of the world names, the worker pool, timers, clocks, ``co_blocking(_:)``, locks and the
/// choices of ``co_select(biased:_:)`` are the world's. Nothing is injected: the code under test does not change.
///
/// - Time stands still while anything can run, and then jumps to the next timer.
/// - A body of co_blocking runs on the world's thread, at a chosen point, outside any coroutine.
/// - A wait for the real world throws ``RealWait``, and also fails the run if the code under test catches the error,
///   unless it is inside ``outside(_:)``.
/// - Threads and Tasks that the code starts itself are not in the world.
///
/// Worlds are independent: tests that run in parallel each have their own.
public final class World: Sendable {
  private struct State: Sendable {
    var core: SimulatedWorld?
    var network: Network?
    var fingerprint: UInt64 = 0
  }

  private let state = Mutex(State())
  private let seed: UInt64?

  /// Creates a world; without a seed its order is first in, first out.
  public init(seed: UInt64? = nil) { self.seed = seed }

  /// The world of the calling coroutine, nil outside.
  public static var current: World? { SimulatedWorld.current?.owner as? World }

  /// Runs `body` in a coroutine of the world, and all that it launches.
  ///
  /// Blocks the calling thread; any thread. After the body's end the rest may end as well, as long as no time passes.
  /// What is left then, or after a failure, is cancelled and unwinds before this returns.
  /// - Throws: The error of the body; ``Deadlock``, ``LeftRunning`` or ``RealWait``.
  public func run<R: Sendable>(_ body: @escaping @Sendable () throws -> R) throws -> R {
    let policy = RunPolicy(seed.map { RandomChooser(seed: $0) } ?? Chooser())
    return try run(policy, seed: seed ?? 0, isTraced: false, body)
  }

  func run<R: Sendable>(
    _ policy: RunPolicy,
    seed: UInt64,
    isTraced: Bool,
    _ body: @escaping () throws -> R
  ) throws -> R {
    let core = SimulatedWorld(owner: self, policy: policy, seed: seed)
    core.isTraced = isTraced
    if policy.chooser.tracksSharing { core.footprints = Footprints() }
    let network = Network(core)
    core.network = network
    state.withLock { ($0.core, $0.network) = (core, network) }
    defer {
      // The network holds its world.
      core.network = nil
      network.end()
      state.withLock { $0.network = nil }
    }
    defer { state.withLock { $0.fingerprint = policy.fingerprint } }
    policy.chooser.begin(seed)
    return try core.run {
      defer { network.stop() }
      return try body()
    }
  }

  /// The time since the world began.
  public var now: Duration { .nanoseconds(Int64(state.withLock { $0.core?.elapsed ?? 0 })) }

  /// The network that the sockets of CoroutineNet use in this world.
  ///
  /// The world must run: called from inside.
  public var network: Network {
    guard let network = state.withLock({ $0.network }) else {
      preconditionFailure("a world has a network while it runs: ask for it inside of World.run")
    }
    return network
  }

  var endDump: String { state.withLock { $0.core?.endDump ?? "" } }

  /// A number that two runs share if they were equal: the same choices of the same coroutines.
  public var fingerprint: UInt64 { state.withLock { $0.fingerprint } }

  /// Lets `duration` pass, and then everything run that has become ready.
  ///
  /// Suspends the calling coroutine, which must be one of this world. If it is cancelled, it throws.
  /// - Throws: The cancellation error; ``CoroutineError/notInCoroutine`` outside this world.
  public func advance(by duration: Duration) throws {
    let core = try inside()
    try co_delay(duration)
    try core.settle()
  }

  /// Lets everything run that can run without time passing.
  ///
  /// Suspends the calling coroutine, which must be one of this world, until no other one can run. If it is cancelled,
  /// it throws.
  /// - Throws: The cancellation error; ``CoroutineError/notInCoroutine`` outside this world.
  public func settle() throws { try inside().settle() }

  private func inside() throws -> SimulatedWorld {
    guard let core = state.withLock({ $0.core }), SimulatedWorld.current === core else {
      throw CoroutineError.notInCoroutine
    }
    return core
  }

  /// Runs `body`, whose waits may be for the real world: a descriptor, a Task, a callback of a real thread.
  ///
  /// While only such waits are left, the world blocks its thread, and its time stands still. co_blocking uses real
  /// threads inside. Outside a world it just runs `body`.
  public static func outside<R>(_ body: () throws -> R) rethrows -> R {
    guard let core = SimulatedWorld.current else { return try body() }
    return try core.outside(body)
  }
}
