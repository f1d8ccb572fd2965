import CLinux
import Dispatch
import Testing

@testable import Coroutine

/// `cancel()` of a job that has not begun ends the job within the call, and leaves code of the program to another
/// thread (docs/evolution/0031).
@Suite("Cancelled before the start, the code that is told later", .timeLimit(.minutes(10)))
struct DeferredTellingTests {
  /// What tells code of the program of the end.
  enum Hearing: CaseIterable, Sendable {
    case observer, copy, copyOfCopy, watcher, message

    /// Makes a job that has not begun, at whose end `hear` is called; returns what keeps it from being released.
    ///
    /// Does not suspend.
    func job(on queue: DispatchQueue, _ hear: @escaping @Sendable () -> Void) -> (job: AnyJob, held: [Any]) {
      let job = co_launch(on: queue) { 1 }
      let note: @Sendable (Int) -> Void = { _ in hear() }
      let actor = co_actor(of: Int.self, on: queue, onUndelivered: note) { _ in }
      let hears: @Sendable (Result<Int, any Error>) -> Void = { _ in hear() }
      switch self {
      case .observer: return (job, [job.observe(hears), actor])
      case .copy, .copyOfCopy:
        let copy = self == .copy ? job.uncancelled : job.uncancelled.uncancelled
        return (job, [copy, copy.observe(hears), actor])
      case .watcher:
        let watcher = ActorWatcher(actor.core, .tells { _ in hear() })
        actor.core.watch(watcher)
        return (actor.job, [actor, watcher])
      case .message:
        _ = actor.tryTell(1)
        return (actor.job, [actor])
      }
    }
  }

  @Test(.inWorlds, arguments: Hearing.allCases)
  func `is called after cancel has returned, and once`(_ hearing: Hearing) throws {
    let (trace, heard) = (Trace(), Gate())
    let (job, held) = hearing.job(on: taggedQueue("other")) {
      trace("heard")
      heard.open()
    }
    job.cancel()
    trace("\(job.completion.isSettled)")
    try heard.pass()
    try settleWorld()
    #expect(trace.all == ["true", "heard"])
    withExtendedLifetime(held) {}
  }

  @Test(arguments: Hearing.allCases)
  func `is called on another thread, while the queue of the job is blocked`(_ hearing: Hearing) async throws {
    let blocked = try await BlockedQueue()
    let (place, heard) = (Locked<Int32>(0), Gate())
    let (job, held) = hearing.job(on: blocked.queue) {
      place.current = clinux_thread_id()
      heard.open()
    }
    let box = Handed(job)
    let canceller = try await onOwnThread {
      box.value.cancel()
      return clinux_thread_id()
    }
    try await heard.value
    #expect(place.current != canceller)
    withExtendedLifetime(held) {}
  }

  // MARK: Executors of the program

  /// An executor of Tasks that says on which threads it was given work.
  private final class CountingExecutor: TaskExecutor {
    let threads = Locked<[Int32]>([])
    private let queue = DispatchQueue(label: "coroutine.tests.executor")

    func enqueue(_ job: consuming ExecutorJob) {
      threads.withLock { $0.append(clinux_thread_id()) }
      let job = UnownedJob(job)
      queue.async { [self] in job.runSynchronously(on: asUnownedTaskExecutor()) }
    }
  }

  /// The executor may take a lock that `cancel()` is called under.
  @Test func `is not the executor of a Task that waits for the job`() async throws {
    let blocked = try await BlockedQueue()
    let executor = CountingExecutor()
    let job = co_launch(on: blocked.queue) { 1 }
    let task = Task(executorPreference: executor) { await asyncOutcome { try await job.value } }
    while job.completion.withLock({ job.completion.pointee.waiters.first == nil }) { await Task.yield() }
    let canceller = try await onOwnThread {
      job.cancel(Oops("job"))
      return clinux_thread_id()
    }
    #expect(await task.value == "Oops(job)")
    #expect(!executor.threads.current.contains(canceller))
  }
}
