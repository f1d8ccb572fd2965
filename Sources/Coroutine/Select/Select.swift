// A select is one waiter that is queued in several places: channels, promises, locks. It ends by one claim of the one wait.
//
//   1 evaluate   the operands, once, in order
//   2 lock       every place, in the order of the places' addresses, each once
//   3 attempt    the cases in random order, or in the given order when biased: the first that can is committed
//   4 enqueue    a node in every place, in the order of 3, if none could; `otherwise`, where there is one, ends the select here
//                instead
//   5 unlock     every place; start the earliest timeout; park
//   6 withdraw   the losers' nodes, each under its own place's lock; then run the body of the case that won
//
// Why exactly one case commits, whatever others do. A select that looks for partners (3) runs: its wait has not begun, none
// of its nodes is linked, so nobody can commit a case of it meanwhile, and it commits at most one itself. A select that waits
// has all its nodes linked with one token: whoever wants to commit a case of it claims the token, and one claim succeeds.
// Two selects that could match each other both want the lock of the channel in which they would meet. Whoever has it first
// either finds the other's node and claims it, or links its own before the other can look. Neither needs to claim itself, so
// there are no two claims to be made as one. Because all locks are held from 3 to 5, no partner can slip in between the
// look at one place and the queueing in it, and `otherwise` is chosen only if at one moment no case was ready. Locks are
// taken in one order by all selects, and whoever is no select holds one place's lock at a time and takes none inside: no
// circle can arise. A send and a receive on one channel in one select never meet: while it looks its nodes are not linked,
// and while they are linked it does not look.
//
// Why cases that share a queue share what comes: 3 has made every order of the cases equally likely, and it ends in 4 only if
// no case could commit, which does not depend on the order. So the order is still uniform when the nodes are linked, and of
// several nodes in one queue each is the first, which is the one that is claimed, equally often.
//
// What a place must do to take part is in SelectOperation.swift: channels do it in Channel+Select.swift, jobs and every other
// Awaitable in Select+Await.swift.

/// One case of a select under way.
///
/// On the selecting stack; `slotted` comes first, so that a pointer to its node leads to all of it. Eight of them, and
/// eight cases, each fit into the 1024 bytes that Swift takes from the stack.
@usableFromInline
struct SelectWaiter {
  /// The node, and where what it carries lies: in `words`, or where `prepare` makes it lead.
  @usableFromInline var slotted: ValueWaiter
  @usableFromInline let kind: SelectSource.Kind
  /// The case that is attempted at this position.
  @usableFromInline var attempted: UInt8 = 0
  /// The case whose place is locked at this position.
  @usableFromInline var locked: UInt8 = 0
  /// The case, which holds the place.
  ///
  /// Lives longer than the node.
  @usableFromInline let source: UnsafePointer<SelectSource>
  @usableFromInline var words: SelectWords

  @inlinable @inline(__always)
  init(_ source: UnsafePointer<SelectSource>, at address: UnsafeMutablePointer<SelectWaiter>, _ index: Int) {
    self.source = source
    kind = source.pointee.kind
    words = source.pointee.words
    // `words` is the last field.
    let slot =
      UnsafeMutableRawPointer(address) + (MemoryLayout<SelectWaiter>.size - MemoryLayout<SelectWords>.size)
    slotted = ValueWaiter(Waiter(reason: WakeReason.firstCase &+ UInt8(truncatingIfNeeded: index)), slot: slot)
  }
}

extension Waiter {
  /// A node whose job and token are not known yet.
  @inlinable
  init(reason: UInt8) { self.reason = reason }
}

/// Waits until one of several operations can be done, does that one, and runs its body: a select over receiving, sending,
/// awaiting, locking, timeouts.
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
/// Exactly one case commits, also against other selects on other threads; the others have then no effect. Where several are
/// ready one is picked uniformly at random, or the first in order when `biased`; so it is among cases that wait for the same
/// side of the same channel, or for the same lock or promise. A case left out by `if` is a disabled one. With
/// an `otherwise` case it never waits. A closed channel is ready: `onReceive` gets nil, or the cause is thrown; a send throws
/// ``ChannelClosed``. A timeout of zero or less is ready at once. No case at all: waits until cancelled.
///
/// The operands are evaluated once, in order, before anything is looked at; the body runs last, when no case is pending any
/// more. Suspends unless a case is ready; cancelled, it throws at once and no case has committed. Off a coroutine
/// ``CoroutineError/notInCoroutine``. Up to eight cases allocate nothing, but for this: a value to send that holds
/// references and is no single object, or is larger than four words, is boxed; so is the place for a value to receive that is
/// larger than four words; an `Awaitable` that is not the runtime's own is observed anew. At most 240 cases; more trap.
@inlinable
public func co_select<R, Cases: SelectCases<R>>(
  biased: Bool = false,
  @SelectBuilder<R> _ cases: () throws -> Cases
) throws -> R {
  try Carrier.requireJob().1.checkCancelled()
  var chosen = try cases()
  let count = chosen.caseCount
  if count == 0 { try SelectRun.waitForCancellation() }
  if Cases.isFlat {
    return try withUnsafeMutablePointer(to: &chosen) {
      try select(UnsafeMutableRawPointer($0).assumingMemoryBound(to: SelectCase<R>.self), count, biased)
    }
  }
  return try withUnsafeTemporaryAllocation(of: SelectCase<R>.self, capacity: count) { table in
    let table = table.baseAddress.unsafelyUnwrapped
    _ = chosen.putCases(at: table)
    defer { for index in 0..<count { (table + index).deinitialize(count: 1) } }
    return try select(table, count, biased)
  }
}

/// A select among the cases of a table.
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
      _ = try table[winner].source.operate(.finish, waiters + winner, result)
      return result.move()
    }
  }
}
