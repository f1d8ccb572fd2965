import Synchronization

// A scope tells its children to finish.
//
//   QUIET --Scope.stop(within:), or the enclosing scope's signal was told--> TOLD for ever
//
// Each scope has at most one signal. It is created by the first who asks for it, without a lock: of two that ask at
// once, the one that stores it first, under the scope's lock, is kept. A new signal is linked to the signal of the
// enclosing scope, which is the scope that the owner's job is a child of. That scope outlives this one, since it waits
// for the owner.
//
// Scopes nest as deeply as programs like, so the ways over them are loops: who tells a signal takes the ones inside it
// along in a list (`tell`), and the last reference to an inner signal releases the outer ones one by one (`deinit`).
//
// Invariants, under `lock`
//  1. `inner` has the signals that were created inside this one, and not released, until it is told. Weak: they hold it.
//  2. A signal is linked before it is stored in its scope, and a signal that is linked after its outer one was told is
//     told at once. So a signal that anybody knows is told whenever an outer one is, perhaps an instant later.

/// Tells the coroutines of a scope that they should finish; the result of ``co_stopping``.
///
/// Await it, or select it with ``Awaitable/onAwait(_:)``. It has no failure.
public final class StopSignal: Awaitable, CompletionBacked, @unchecked Sendable {
  // Sound because the completion guards itself, its address is constant, and the rest has the invariants above.
  let completion: CompletionRef
  /// The enclosing scope's signal; changed in the deinit only.
  @exclusivity(unchecked) private var outer: StopSignal?
  private struct Inner {
    /// The order of linking, in which they are told.
    let number: Int
    weak var signal: StopSignal?
  }
  private let lock = Shared<ThreadLock>()
  @exclusivity(unchecked) private var inner: [ObjectIdentifier: Inner]? = [:]
  @exclusivity(unchecked) private var linked = 0

  /// The signal of coroutines that no scope has launched: it is never told.
  static let never = StopSignal(inside: nil)

  init(inside enclosing: StopSignal?) {
    completion = .allocate(capacity: 1)
    completion.initialize(to: Completion(for: Void.self))
    outer = enclosing
    checkAddress(completion.waiterAddress, of: &completion.pointee.waiters)
    if let enclosing, !enclosing.link(self) { tell() }
  }

  deinit {
    outer?.unlink(ObjectIdentifier(self))
    var last = outer.take()
    while last != nil, isKnownUniquelyReferenced(&last), let signal = last {
      signal.outer?.unlink(ObjectIdentifier(signal))
      last = signal.outer.take()
    }
    completion.deinitialize(count: 1)
    completion.deallocate()
  }

  /// Links an inner signal; returns false if this one was told.
  private func link(_ signal: StopSignal) -> Bool {
    lock.withLock {
      guard inner != nil else { return false }
      linked += 1
      inner?[ObjectIdentifier(signal)] = Inner(number: linked, signal: signal)
      return true
    }
  }

  private func unlink(_ signal: ObjectIdentifier) { lock.withLock { _ = inner?.removeValue(forKey: signal) } }

  /// Whether the coroutines should finish.
  public var isTold: Bool { completion.isSettled }

  /// Does nothing: others may wait for the signal as well.
  func consumerWasCancelled() {}

  /// Tells the signal, and those inside it.
  func tell() {
    var untold = [self]
    while let signal = untold.popLast() {
      let inner = signal.lock.withLock { signal.inner.take() }
      guard let inner else { continue }
      untold += inner.values.sorted { $0.number > $1.number }.compactMap(\.signal)
      signal.completion.touch()
      _ = signal.completion.succeed(())
    }
  }

  /// Registers for the moment when the coroutines should finish.
  @_implements(Awaitable,observe(_:))
  public func _observe(_ completion: @escaping @Sendable (Result<Void, any Error>) -> Void) -> AwaitableObservation {
    let callback = ClosureCallback { completion(.success(())) }
    self.completion.touch()
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
