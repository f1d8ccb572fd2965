internal import CCoroutineInspect
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

// MARK: - What programs see

extension CoroutineRuntime {
  /// Returns the circles of coroutines that wait for one another and can never go on, each with all of its members and
  /// their stacks.
  ///
  /// Each coroutine of a circle waits for the one behind it, the last one for the first, where the circle is simple.
  /// ``Snapshot/Wait/owner`` of its wait is that coroutine.
  ///
  /// These waits make circles:
  /// - for a ``FairMutex``, for a ``FairReadWriteLock`` that a writer holds, and for a ``Once`` that runs;
  /// - for a coroutine's end: a join, an await, ``Job/uncancelled``;
  /// - for the answer of an actor, unless the ask was delegated (``Reply/delegate()``). A reply that an actor has given
  ///   to a coroutine outside of its scope without `delegate()` counts as its own;
  /// - for the children of a scope;
  /// - a select, if every one of its cases is such a wait and leads into a circle.
  ///
  /// A circle is none if something can end it: a timeout of a select, a deadline (`co_timeout`) around a
  /// member or around the scope in which it runs, ``Scope/stop(within:)``, another case of a select, a source that
  /// nobody owns, such as a channel, a descriptor or a callback. Cancellations by hand or by a failure are not
  /// foreseen. Coroutines that only wait for a circle are not members.
  ///
  /// Each circle was one when it was found: no member is reported that could have gone on. It is not found in the
  /// moment in which a coroutine that owns a scope around it runs on another thread, because that one's deadlines are
  /// not known then. In a simulated world it searches that world, elsewhere all coroutines outside of worlds.
  ///
  /// Never suspends; any thread, even while all queues and workers are stuck. Linear in the number of coroutines that
  /// wait for one of the things above, and reads two words of each other one. It stops no coroutine; one that is woken
  /// while its deadlines are being read is enqueued some instructions later.
  public static func deadlocks() -> [[Snapshot.Coroutine]] {
    Host.touchesEverything()
    return Deadlocks.find().map(\.snapshot)
  }

  /// Calls `handler` once for each circle of coroutines that can never go on; see ``deadlocks()``.
  ///
  /// At most 100 ms after the circle has closed, on a machine that is not overloaded, while up to about 100,000
  /// coroutines wait in locks, joins, scopes, asks and selects; beyond that the search takes longer. It is repeated
  /// every 40 ms, and less often if it would use more than a twenty-fifth of a processor. Circles that exist when the
  /// handler is set are reported to it. Without a handler nothing is searched, and no thread exists.
  ///
  /// Never suspends; any thread, at any time; the last call counts for the whole process. `handler` is called on a
  /// thread of the runtime's, one circle after the other; while it runs, nothing is searched. In a forked child, and
  /// where the process has met a limit on threads, it is to be set again. Circles in simulated worlds are not reported
  /// to it.
  ///
  /// - Parameter handler: Receives the members as ``deadlocks()`` returns them; nil for none.
  public static func onDeadlock(_ handler: (@Sendable ([Snapshot.Coroutine]) -> Void)?) { DeadlockWatch.set(handler) }
}

extension Deadlocks.Circle {
  /// The members as values, each with its stack and the number of the one that it waits for.
  var snapshot: [CoroutineRuntime.Snapshot.Coroutine] {
    var reader = SnapshotReader(JobNames(members.sorted { $0.id < $1.id }))
    var walker = StackReader()
    var coroutines: [CoroutineRuntime.Snapshot.Coroutine] = []
    for first in stride(from: 0, to: members.count, by: StackReader.batch) {
      let some = members[first..<min(first + StackReader.batch, members.count)]
      for entry in walker.read(some) { coroutines.append(reader.coroutine(entry)) }
    }
    for index in members.indices {
      let next = members[index + 1 == members.count ? 0 : index + 1]
      if coroutines[index].wait != nil, coroutines[index].wait?.owner == nil { coroutines[index].wait?.owner = next.id }
    }
    return coroutines
  }
}

extension Deadlocks.Circle {
  /// One line of a dump: `deadlock: #7 "a" waits for #8 "b", which waits for #7 "a"`.
  var line: String {
    let titles = members.map { JobNames.title(of: $0) }
    return "deadlock: " + titles[0] + " waits for "
      + (titles.dropFirst() + titles.prefix(1)).joined(separator: ", which waits for ")
  }
}
