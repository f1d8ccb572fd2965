import CCoroutine
import Dispatch
import Synchronization

// Waits of a world's coroutines for the real world.

extension SimulatedWorld {
  /// Marks the running coroutine's waits as waits for the real world while `body` runs.
  package func outside<R, Failure>(_ body: () throws(Failure) -> R) throws(Failure) -> R {
    guard let job = Carrier.current?.pointee.job else { return try body() }
    outside[job, default: 0] += 1
    defer {
      outside[job, default: 1] -= 1
      if outside[job] == 0 { outside[job] = nil }
    }
    return try body()
  }

  func isOutside(_ job: JobRef) -> Bool { outside[job] != nil }

  /// Returns the error of a wait for the real world, which also fails the run if the code under test catches it.
  func refuse(_ what: String, _ job: JobRef?) -> any Error {
    let name = job.map { $0.handle._withUnsafeGuaranteedRef { $0.summary } } ?? "code outside of any coroutine"
    let error = policy.realWait("\(name) waits for \(what)")
    fail(error)
    return error
  }

  /// Blocks the thread until a real thread has sent a message, if a coroutine waits for one.
  ///
  /// Returns whether a message has arrived.
  func waitOutside() -> Bool {
    // Nothing can run, so each of them is parked. One that does not wait any more was claimed by a real thread, which
    // is about to send its message. In a run that has failed, it may be parked for ever (`throwsCancellation`).
    let isAwaited = outside.keys.contains { job in
      guard job.seemsWaiting || finding == nil else { return false }
      return WaitKind(rawValue: job.pointee.waitKind.load(ordering: .relaxed))?.isReal ?? false
    }
    guard isAwaited else { return false }
    defer { for executor in executors { _ = executor.scheduler.inbox.wakeUp() } }
    // A message that arrives after this finds an idle inbox, and signals the semaphore.
    for executor in executors where !executor.scheduler.inbox.goIdle() { return true }
    BlockingPool.whileWaiting { wakeUp.wait() }
    return true
  }

  /// The error of a coroutine that waits for a Task which nothing in the world resumes; nil if there is none.
  var waitsForTask: (any Error)? {
    for executor in executors {
      var job = executor.scheduler.firstLive
      while let current = job {
        if current.seemsWaiting, current.pointee.waitKind.load(ordering: .relaxed) == WaitKind.task.rawValue {
          return refuse("a Task, which nothing in the world resumes", current)
        }
        job = current.pointee.nextLive
      }
    }
    return nil
  }

  /// Records that a real thread is about to resume a Task of the world; called by that thread.
  func swiftJobArrivesFromOutside() { hasSwiftJobFromOutside.store(true, ordering: .relaxed) }

  /// Fails the run: the policy does not choose the moment at which a real thread resumes a Task.
  func checkSwiftJobFromOutside() {
    hasSwiftJobFromOutside.store(false, ordering: .relaxed)
    if outside.isEmpty { fail(policy.realWait("a Task that co_await has started was resumed by a real thread")) }
  }

  /// Wakes the world's thread; called by a thread whose message has found an idle inbox.
  func messageArrived() { wakeUp.signal() }
}

extension WaitKind {
  /// Whether only the real world ends a declared wait of this kind.
  fileprivate var isReal: Bool {
    switch self {
    case .callback, .task, .blocking, .readable, .writable, .descriptor: true
    default: false
    }
  }
}
