internal import CCoroutine
internal import CLinux
import Glibc
import Synchronization

// The thread that searches for deadlocks while a handler is set (CoroutineRuntime.onDeadlock).
//
//   NONE --set(handler)--> WATCHING --the thread finds no handler, under the lock--> NONE
//
// Invariants
//  1. `isRunning` changes under `lock`: to true before the thread starts, to false by the thread as its last action. So
//     at most one thread watches, and a handler that is set while the thread is about to end is seen by it, or finds
//     NONE and starts another.
//  2. `reported` belongs to the thread. It contains the waits of all circles that the current handler has got and that
//     still exist. A wait is never repeated (Waiter.swift), and those of a circle last as long as it does. So a circle
//     is known if it contains one of them, also if a further coroutine has become a member.
//  3. The handler is called under no lock.
//
// The interval. A search that takes the time c is repeated after max(40 ms, 24 c). So the watch takes at most a
// twenty-fifth of a processor, and a circle is found at most max(40 ms, 24 c) + 2 c after it has closed: 100 ms if c is
// up to 3.8 ms.

enum DeadlockWatch {
  typealias Handler = @Sendable ([CoroutineRuntime.Snapshot.Coroutine]) -> Void

  private struct State {
    var handler: Handler?
    /// The number of calls of `set`: a new handler gets the circles that exist.
    var version: UInt64 = 0
    var isRunning = false
    /// The process that the thread is in.
    var owner = getpid()
  }

  private static let lock = ThreadLock()
  // Sound because it is accessed under `lock`.
  nonisolated(unsafe) private static var state = State()

  private static var interval: UInt64 { 40_000_000 }
  /// The inverse of the part of a processor that the searches may use, minus one.
  private static var idleFactor: UInt64 { 24 }

  static func set(_ handler: Handler?) {
    // The former handler is released after the lock is left, because that may run foreign code.
    let former = lock.withLock { () -> Handler? in
      let former = state.handler
      state.handler = handler
      state.version += 1
      // The thread of a forked child's parent is not there.
      if state.owner != getpid() { (state.owner, state.isRunning) = (getpid(), false) }
      if handler != nil, !state.isRunning {
        state.isRunning = DetachedThread.start("co-deadlocks", { watch() }) == 0
      }
      return former
    }
    _ = consume former
  }

  private static func watch() {
    var (reported, version): (Set<Deadlocks.WaitName>, UInt64) = ([], 0)
    while let (handler, current) = next() {
      if current != version { (reported, version) = ([], current) }
      let start = Clock.now
      report(to: handler, &reported)
      DetachedThread.sleep(max(interval, (Clock.now - start) * idleFactor))
    }
  }

  /// The handler; nil if there is none, and then the thread must end.
  private static func next() -> (Handler, UInt64)? {
    lock.withLock {
      if let handler = state.handler { return (handler, state.version) }
      state.isRunning = false
      return nil
    }
  }

  private static func report(to handler: Handler, _ reported: inout Set<Deadlocks.WaitName>) {
    let circles = Deadlocks.find(knowing: reported)
    let new = circles.filter { !$0.waits.contains(where: reported.contains) }
    reported = Set(circles.lazy.flatMap(\.waits))
    if !new.isEmpty { cco_note_incident(CCO_INCIDENT_DEADLOCK) }
    for circle in new { handler(circle.snapshot) }
  }
}
