import Coroutine
import Synchronization

// A copy has two directions, each with a coroutine: the caller's and one child. They share the limit (CopyPace), and
// nothing else.
//
//            reads the end                      both
//   MOVING ---------------> ENDED (shutdownWrite) ---> the copy returns
//     |  fails, or is idle                        the first of the two to fail decides what the copy throws or returns
//     +-------------------> FAILED -----------------> the other direction is cancelled
//
// `CopyPace.isFirst` has one winner, by an exchange. The loser returns without an error, so the scope sees one failure.

/// Copies between two connections, both ways, until both have ended, or neither has moved a byte for `idle`.
///
/// When one connection's stream ends, the other one's output is ended (``Connection/shutdownWrite()``), and the other
/// direction goes on. Suspends until the end. While both wait, no memory is held for bytes. Large transfers between
/// sockets do not pass through the process's memory (splice); each direction of one then has a pipe, two descriptors,
/// unless none is free.
///
/// Both connections stay open, and the caller closes them; but if a peer has reset its connection, the other one is
/// reset as well (``Connection/reset()``), unless the stream had ended before: what was cut off must not look complete
/// there. Until it returns, no other coroutine may read from either, or write to either. If the coroutine is cancelled,
/// it throws at once. After an error, a cancellation or the idle time, bytes that were read from one side and not yet
/// taken by the other are lost; where their length does not show that, reset the connections.
///
/// - Parameters:
///   - a: One connection.
///   - b: The other connection.
///   - idle: The longest time in which no byte has to move in either direction, also if one side does not read. No
///     limit if nil. Zero or less ends the copy as soon as one direction would have to wait.
/// - Returns: The numbers of bytes that the kernel has taken from `a` for `b`, and from `b` for `a`.
/// - Throws: ``NetError``: that of the direction that has failed first; `ECONNRESET` or `EPIPE` if a peer is gone;
///   ``NetError/busy`` if another coroutine reads or writes, or if both are one connection; ``NetError/closed`` after a
///   close. The cancellation error. `CoroutineError.notInCoroutine` outside a coroutine.
@discardableResult
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_copy(_ a: Connection, _ b: Connection, idle: Duration?) throws -> (aToB: Int64, bToA: Int64) {
  let pace = CopyPace(idle)
  let (there, back) = (CopyDirection(from: a, to: b, pace), CopyDirection(from: b, to: a, pace))
  do {
    try co_scope { scope in
      scope.launch(name: "copy") { try back.run() }
      try there.run()
    }
  } catch is CopyPace.Idle {} catch {
    if there.wasCutOff(back) { there.resetTarget() }
    if back.wasCutOff(there) { back.resetTarget() }
    throw error
  }
  return (there.count, back.count)
}

/// What the two directions of a copy share: when a byte has moved last, and which direction has failed first.
final class CopyPace: Sendable {
  /// Neither direction has moved a byte for the limit.
  struct Idle: Error {}

  private let idle: Duration?
  private let last: Atomic<UInt64>
  private let hasFailed = Atomic<Bool>(false)

  init(_ idle: Duration?) {
    self.idle = idle
    last = Atomic(idle == nil ? 0 : CallerClock.now)
  }

  func moved() { if idle != nil { last.store(CallerClock.now, ordering: .relaxed) } }

  /// Whether the caller's failure is the first of the two.
  func isFirst() -> Bool { !hasFailed.exchange(true, ordering: .acquiringAndReleasing) }

  /// Suspends until a system call may succeed; throws `Idle` if neither direction moves a byte in time.
  func wait(_ direction: WatchedDescriptor.Direction, of socket: WatchedDescriptor) throws {
    guard let idle else { return try socket.wait(direction) }
    while true {
      // The other direction's coroutine may have a thread, and so a later clock, of its own.
      let now = CallerClock.now
      let moved = last.load(ordering: .relaxed)
      let passed = now > moved ? now - moved : 0
      let rest = idle - .nanoseconds(Int64(clamping: passed))
      guard rest > .zero else { throw Idle() }
      do {
        return try co_timeout(rest) { try socket.wait(direction) }
      } catch is TimeoutError {
        // The limit has passed, or the coroutine was cancelled with such an error as the reason.
        try co_checkCancelled()
      }
    }
  }
}
