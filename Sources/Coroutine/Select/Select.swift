// A select is one wait with a waiter in the queues of several objects: channels, promises, locks. One claim ends it.
//
//   evaluate        the operands, once, in order
//   lock            every object, in the order of the locks' addresses, each once (LockOrder)
//   tryCases        in random order, or in the given order when biased (AttemptOrder); the first case that is ready
//                   commits. For one that needs memory, leave all locks, make room, lock again, and try all again
//   last resort     if none was ready, the `otherwise` case ends the select
//   enqueueAll      a waiter at every object, in the order of the attempts
//   unlock          every object; start the earliest timeout; park
//   dequeueUnselected
//                   the waiters of unselected cases, each under its object's lock; then the selected case's body runs
//
// Why exactly one case commits
// - A select that tries its cases is running: its wait has not begun and none of its waiters is linked. So no other
//   thread can commit one of its cases, and it commits at most one itself.
// - A select that waits has linked all its waiters with one epoch. A thread that commits one of its cases first claims
//   the epoch, and one claim succeeds.
// - Two selects that could match each other both take the lock of the channel in which they would meet. The first one
//   finds the other's waiter and claims it, or links its own before the other can attempt. Neither claims its own wait,
//   so no two claims have to be made as one.
// - All locks are held from the last tryCases until unlock. So no partner can come between an attempt at an object and
//   the enqueueing there, and `otherwise` is chosen only if at one moment no case was ready.
// - All selects take locks in one order. Other code holds one object's lock at a time and takes none inside it. So no
//   cycle can form.
// - A send and a receive on one channel in one select never meet: while it attempts, its waiters are not linked, and
//   while they are linked, it does not attempt.
//
// Why cases that share a queue are selected equally often: every order of the attempts is equally likely, and whether
// enqueueAll is reached does not depend on the order. So the order is still uniform when the waiters are linked. Of
// several waiters in one queue, the first is claimed, and each is the first equally often.
//
// Select+Run.swift has the passes. SelectOperation.swift says what an object must implement. Channels do it in
// Channel+Select.swift, jobs and every other Awaitable in Select+Await.swift. In the code, `target` is the object that
// a case operates on.

/// The waiter of one case while a select runs, on the selecting coroutine's stack.
///
/// `valueWaiter` is the first field, so that a pointer to its waiter leads to the whole. Eight of these, and eight
/// cases, each fit into the 1024 bytes that Swift takes from the stack.
@usableFromInline
struct SelectWaiter {
  /// The waiter with the address of its value: `words`, or the address that `prepare` stores.
  @usableFromInline var valueWaiter: ValueWaiter
  @usableFromInline let kind: SelectSource.Kind
  /// The case that is attempted at this position.
  @usableFromInline var attempted: UInt8 = 0
  /// The case whose object is locked at this position.
  @usableFromInline var locked: UInt8 = 0
  /// The case, which holds the object.
  ///
  /// It outlives the waiter.
  @usableFromInline let source: UnsafePointer<SelectSource>
  @usableFromInline var words: SelectWords

  @inlinable @inline(__always)
  init(_ source: UnsafePointer<SelectSource>, at address: UnsafeMutablePointer<SelectWaiter>, _ index: Int) {
    self.source = source
    kind = source.pointee.kind
    words = source.pointee.words
    // `words` is the last field.
    let storage =
      UnsafeMutableRawPointer(address) + (MemoryLayout<SelectWaiter>.size - MemoryLayout<SelectWords>.size)
    let reason = WakeReason.firstCase &+ UInt8(truncatingIfNeeded: index)
    valueWaiter = ValueWaiter(Waiter(reason: reason), storage: storage)
  }
}

extension Waiter {
  /// Creates a waiter whose job and epoch are not known yet.
  @inlinable
  init(reason: UInt8) { self.reason = reason }
}

/// Waits until one of several operations is ready, performs that one, and runs its body.
///
/// The operations are receiving, sending, awaiting, locking, and timeouts.
///
/// ```swift
/// try co_select {
///   requests.onReceive { handle($0) }
///   if !log.isEmpty { lines.onSend(log[0]) { log.removeFirst() } }
///   quit.onAwait { _ in stop() }
///   .onTimeout(.seconds(1)) { idle() }
/// }
/// ```
///
/// - Exactly one case commits, even against other selects on other threads. The other cases have no effect.
/// - If several cases are ready, one is selected uniformly at random, or the first in order when `biased`. The same
///   holds for cases that wait at the same side of one channel, or for the same lock or promise.
/// - A case that an `if` leaves out is disabled. With an `otherwise` case, the select never waits. Without cases, it
///   waits until it is cancelled. A timeout of zero or less is ready at once.
/// - A closed channel is ready: `onReceive` gets nil, or the channel's cause is thrown; a send throws
///   ``ChannelClosedError``.
/// - The operands are evaluated once, in order, before any case is attempted. The body runs last, when no case is
///   pending any more.
///
/// Suspends unless a case is ready. If the coroutine is cancelled, it throws at once, and no case has committed. Throws
/// ``CoroutineError/notInCoroutine`` outside a coroutine.
///
/// Up to eight cases allocate nothing, with three exceptions. A value to send is boxed if it is larger than four words,
/// or contains references and is not a single object. The memory for a received value larger than four words is
/// allocated. An `Awaitable` that is not the runtime's own is observed anew.
///
/// More than 240 cases throw ``CoroutineError/tooManyCases(_:)``, and none commits: let many send into one channel.
@inlinable
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_select<R, Cases: _SelectCases<R>>(
  biased: Bool = false,
  @SelectBuilder<R> _ cases: () throws -> Cases
) throws -> R {
  try Carrier.requireJob().1.checkCancelled()
  if Cases._isFlat {
    return try withUnsafeTemporaryAllocation(of: Cases.self, capacity: 1) { chosen in
      let chosen = chosen.baseAddress.unsafelyUnwrapped
      chosen.initialize(to: try cases())
      let count = chosen.pointee._caseCount
      let table = UnsafeMutableRawPointer(chosen).assumingMemoryBound(to: SelectCase<R>.self)
      defer { end(table, count) }
      return try select(table, count, biased)
    }
  }
  let chosen = try cases()
  let count = chosen._caseCount
  if count == 0 { try SelectRun.waitForCancellation() }
  return try withUnsafeTemporaryAllocation(of: SelectCase<R>.self, capacity: count) { table in
    let table = table.baseAddress.unsafelyUnwrapped
    _ = chosen._putCases(at: table)
    defer { end(table, count) }
    return try select(table, count, biased)
  }
}

/// Ends the cases of a table.
///
/// By their parts, whose type is not generic: a case would be ended through the metadata of its type.
@inlinable @inline(__always)
func end<R>(_ table: UnsafeMutablePointer<SelectCase<R>>, _ count: Int) {
  for index in 0..<count {
    // Sound because a case has no other field.
    UnsafeMutableRawPointer(table + index).assumingMemoryBound(to: SelectSource.self).deinitialize(count: 1)
  }
}

/// Selects among the cases of a table.
@inlinable @inline(__always)
func select<R>(_ table: UnsafeMutablePointer<SelectCase<R>>, _ count: Int, _ biased: Bool) throws -> R {
  try withUnsafeTemporaryAllocation(of: SelectWaiter.self, capacity: count) { waiters in
    let waiters = waiters.baseAddress.unsafelyUnwrapped
    var needsPreparation = false
    for index in 0..<count {
      let source = UnsafeRawPointer(table + index).assumingMemoryBound(to: SelectSource.self)
      (waiters + index).initialize(to: SelectWaiter(source, at: waiters + index, index))
      if source.pointee.needsPreparation { needsPreparation = true }
    }
    let winner = try SelectRun.run(waiters, count, biased, needsPreparation: needsPreparation)
    defer { if needsPreparation { SelectRun.dispose(waiters + winner) } }
    return try withUnsafeTemporaryAllocation(of: R.self, capacity: 1) { result in
      let result = result.baseAddress.unsafelyUnwrapped
      _ = try (waiters + winner).operate(.finish, result)
      return result.move()
    }
  }
}
