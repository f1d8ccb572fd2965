import Synchronization

// A scope tells its children to finish.
//
//   QUIET --Scope.stop(within:), or the enclosing scope's signal was told--> TOLD for ever
//
// Each scope has at most one signal. It is created by the first who asks for it, without a lock: of two that ask at
// once, the one that stores it first, under the scope's lock, is kept. A new signal observes the signal of the
// enclosing scope, which is the scope that the owner's job is a child of. That scope outlives this one, since it waits
// for the owner. The observation is added before the signal is stored, so a signal that anybody knows is told whenever
// an enclosing one is. It is removed when the last reference to the signal goes.

/// Tells the coroutines of a scope that they should finish; the result of ``co_stopping``.
///
/// Await it, or select it with ``Awaitable/onAwait(_:)``. It has no failure.
public final class StopSignal: Awaitable, CompletionBacked, @unchecked Sendable {
  // Sound because the completion guards itself, and its address is constant.
  let completion: CompletionRef
  /// The observation of the enclosing scope's signal.
  private let outer = SetOnce<AwaitableObservation>()

  /// The signal of coroutines that no scope has launched: it is never told.
  static let never = StopSignal(inside: nil)

  init(inside enclosing: StopSignal?) {
    completion = .allocate(capacity: 1)
    completion.initialize(to: Completion(for: Void.self))
    checkAddress(completion.waiterAddress, of: &completion.pointee.waiters)
    if let enclosing { outer.set(enclosing.observe { [weak self] _ in self?.tell() }) }
  }

  deinit {
    outer.value?.cancel()
    completion.deinitialize(count: 1)
    completion.deallocate()
  }

  /// Whether the coroutines should finish.
  public var isTold: Bool { completion.isSettled }

  /// Does nothing: others may wait for the signal as well.
  func consumerWasCancelled() {}

  func tell() { _ = completion.succeed(()) }

  /// Registers for the moment when the coroutines should finish.
  @_implements(Awaitable,observe(_:))
  public func _observe(_ completion: @escaping @Sendable (Result<Void, any Error>) -> Void) -> AwaitableObservation {
    let callback = ClosureCallback { completion(.success(())) }
    guard self.completion.add(callback) else {
      completion(.success(()))
      return AwaitableObservation {}
    }
    return AwaitableObservation { _ = self.completion.remove(callback) }
  }

  /// Suspends until the coroutines should finish.
  @available(*, noasync, message: "use `observe`")
  public func _awaitValue() throws { try completion.wait(.callback) }
}

/// Whether the calling coroutine should finish: a scope that it was launched in, or one around that, was told to stop.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/RecipeFlowSnippets.swift -->
/// ```swift
/// while !co_isStopping {
///   let order: Int? = try co_select(biased: true) {
///     co_stopping.onAwait { _ in nil }
///     orders.onReceive { $0 }
///   }
///   guard let order else { break }
///   scope.launch(name: "order \(order)") { try work(order) }
/// }
/// ```
///
/// Never suspends. False outside a coroutine, and in one that no scope has launched. A loop with work of its own checks
/// it between two pieces; a coroutine that waits selects ``co_stopping``. Linear in the depth of the scopes.
public var co_isStopping: Bool {
  var scope = Carrier.current?.pointee.job?.enclosingScope
  while let current = scope {
    if current.isStopping { return true }
    scope = current.enclosing
  }
  return false
}

/// The signal that tells the calling coroutine to finish.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideStateSnippets.swift -->
/// ```swift
/// func nextEvent() throws -> Event {
///   try co_select {
///     orders.onReceive { order in order.map { .order($0) } ?? .closed }
///     ticker.onTick { _ in .tick }
///     co_stopping.onAwait { _ in .stop }
///   }
/// }
/// ```
///
/// Never suspends. Outside a coroutine, and in one that no scope has launched, it is a signal that is never told.
public var co_stopping: StopSignal { Carrier.current?.pointee.job?.enclosingScope?.stopSignal ?? .never }
