import Synchronization

extension Scope {
  /// Asks the children to finish, and cancels those that have not ended after `duration`.
  ///
  /// The children, and all coroutines that they have launched in scopes, see ``co_isStopping`` and ``co_stopping``; so
  /// do those that are launched later. A coroutine
  /// that reads neither of them continues until it is cancelled.
  ///
  /// Never suspends; any thread, repeatedly: the earliest end of a duration counts. With a duration of zero or less it
  /// cancels at once. Does nothing after the scope's end.
  public func stop(within duration: Duration) {
    stopSignal.tell()
    guard duration > .zero else { return cancel() }
    let timer = StopTimer(
      co_launch(name: "Scope.stop") { [self] in
        try co_delay(duration)
        cancel()
      }
    )
    lock.lock()
    let isOver = hasEnded
    if !isOver {
      timer.next = stopTimers
      stopTimers = timer
    }
    lock.unlock()
    if isOver { timer.job.cancel() }
  }

  /// Ends what `stop` has begun; called by the owner at the scope's end.
  func endTimers(_ first: StopTimer?) {
    var timer = first
    while let current = timer {
      current.job.cancel()
      timer = current.next.take()
    }
  }

  var isStopping: Bool {
    // The signal may not exist yet.
    stopping.withLock { signal }?.isTold ?? false
  }

  /// The scope's signal, created at the first use, after those of the scopes around it.
  var stopSignal: StopSignal {
    var without: [Scope] = []
    var scope: Scope? = self
    var outer: StopSignal?
    while let current = scope {
      outer = current.stopping.withLock { current.signal }
      if outer != nil { break }
      without.append(current)
      scope = current.enclosing
    }
    while let current = without.popLast() {
      let mine = StopSignal(inside: outer)
      outer = current.stopping.withLock {
        let chosen = current.signal ?? mine
        current.signal = chosen
        return chosen
      }
    }
    return outer.unsafelyUnwrapped
  }

  /// The scope that the owner was launched in; nil after this scope's end.
  ///
  /// Any thread: the owner is held, which may end as soon as the lock is left.
  var enclosing: Scope? {
    let owner: AnyJob? = lock.withLock { hasEnded ? nil : self.owner.handle.takeUnretainedValue() }
    return owner.flatMap { $0.record.enclosingScope }
  }
}

/// The coroutine that cancels a scope when a duration of `stop` is over; in the scope's list, under its lock.
final class StopTimer: @unchecked Sendable {
  // Sound because `next` is written before the node is in the list, and read by the owner that has taken the list.
  let job: Job<Void>
  @exclusivity(unchecked) var next: StopTimer?

  init(_ job: Job<Void>) { self.job = job }
}

extension Scope: EnclosingScope {
  var joiner: AnyJob? { lock.withLock { hasEnded ? nil : owner.handle.takeUnretainedValue() } }
  var isAboutToCancel: Bool { lock.withLock { stopTimers != nil } }
}

extension JobRef {
  /// The scope that the job was launched in: the callback of its end that the scope has added (`Child`).
  ///
  /// The caller holds the job. A job that has finished is in no scope any more: its end removes the callback.
  var enclosingScope: Scope? {
    let completion = handle._withUnsafeGuaranteedRef { $0.completion }
    // Known: no other use changes the answer.
    return completion.known.lock.withLock {
      let waiter = completion.pointee.waiters.first { $0.pointee.callbackIfAny is ScopeChild }
      return (waiter?.pointee.callbackIfAny as? ScopeChild)?.scope
    }
  }
}

// MARK: - The signal

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
//  1. `inner` has the signals that were created inside this one, and not released, until it is told. Weak: they hold
//     it.
//  2. A signal is linked before it is stored in its scope, and a signal that is linked after its outer one was told is
//     told at once. So a signal that anybody knows is told whenever an outer one is, perhaps an instant later.
//  3. A signal is told before any signal inside it is.

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
      // Settled first: a signal that finds no list any more is told at once, and its coroutines look at this one.
      signal.completion.touch()
      _ = signal.completion.succeed(())
      let inner = signal.lock.withLock { signal.inner.take() }
      guard let inner else { continue }
      untold += inner.values.sorted { $0.number > $1.number }.compactMap(\.signal)
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

// MARK: - Serving

// What servers have in common, whatever they accept: the scopes, the rule for their end, and the errors that end them.
//
//   isolated scope `outside`      its children are cancelled with the server's coroutine, also while that waits below
//     co_shield
//       isolated scope `handlers` its children are not
//         accept                  its waits are in children of `outside`
//         drain
//
//   ACCEPTING --- accept returns or throws ---> DRAINING --- none is left, the time is over, or cut short ---> ENDED
//                                               handlers are told to finish                handlers are cancelled
//
// The coroutine is        while ACCEPTING           while DRAINING
//   cancelled, not told   DRAINING                  nothing, if a cancellation began it; else ENDED
//   told to stop          DRAINING                  nothing
//   cancelled after that  ENDED                     ENDED
//
// A cancellation reaches the drain in the same way as the accepting: as a child of `outside`. Only the cancellation
// that has ended the accepting must not end the drain as well. Then the coroutine itself drains, in the shield.

extension Scope {
  /// Serves: accepts until the server ends, then lets the handlers finish for a while, and cancels the others.
  ///
  /// Suspends until the last handler has ended. Called in a coroutine. The server's cancellation ends it without an
  /// error. A cancellation that comes after a stop (`Scope.stop(within:)`) cancels the handlers at once.
  ///
  /// - Parameters:
  ///   - limit: The time in which handlers may finish. They are told to at its beginning (``co_isStopping``).
  ///   - noneIsLeft: Suspends until no connection is left. Called at the beginning of that time, and once more when the
  ///     handlers are cancelled: until it returns then, handlers may be launched.
  ///   - accept: Accepts until the server is to end, and launches handlers in the first scope. It waits in children of
  ///     the second one, which are cancelled with this coroutine; accept itself is not.
  /// - Throws: The error of `accept`, when the handlers have ended, unless the coroutine was cancelled before it.
  @_spi(Hosting)
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func serve(
    draining limit: Duration,
    until noneIsLeft: @escaping @Sendable () throws -> Void,
    accepting accept: (_ handlers: Scope, _ outside: Scope) throws -> Void
  ) throws {
    var failure: (any Error)?
    do {
      let (_, job) = try Carrier.requireJob()
      try runScope(job, .isolated) { outside in
        // A server that was cancelled before it has begun accepts what waits, as one that is cancelled later.
        if co_isCancelled { outside.cancel() }
        try co_shield {
          try co_scope(failures: .isolated) { handlers in
            do { try accept(handlers, outside) } catch { if !outside.isSignalled { failure = error } }
            handlers.stopSignal.tell()
            let drain = { @Sendable in try co_timeout(limit, noneIsLeft) }
            if outside.isSignalled, !co_isStopping {
              try? drain()
            } else {
              // In a scope that is cancelled the child does not run, and ends at once.
              _ = try? outside.launch(name: "drain", drain).join()
            }
            handlers.cancel()
            // A handler whose connection was accepted before may be launched only now, in a scope that has not ended.
            co_shield { try? noneIsLeft() }
          }
        }
      }
    } catch {
      if !co_isCancelled { throw error }
    }
    if let failure { throw failure }
  }
}
