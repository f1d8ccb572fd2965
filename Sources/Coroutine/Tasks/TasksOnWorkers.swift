internal import CCoroutineRuntime
import Glibc
import Synchronization
@_spi(ExperimentalCustomExecutors) @_spi(ExperimentalScheduling) import _Concurrency

// The worker pool as the default executor of Tasks (`CoroutineRuntime.runTasksOnWorkers`).
//
// The proof. Before the pool takes anything, a Task is run by the calling thread: an interceptor takes what that thread
// enqueues, and the thread runs it at once. So each effect is seen or missing when the call returns, whatever other
// threads do, and nothing waits. The Task begins, gives way, and sleeps by two clocks; that is all that the pool is
// asked for. If an effect is missing, the job has gone to the executor before, where it does no harm.
//
// Once. The calls exclude each other, and the first outcome is that of all later ones: what has refused it, a program
// does not change while it runs.

extension CoroutineRuntime {
  /// Runs Tasks on the worker pool from now on: all that have no executor of their own.
  ///
  /// Tasks and coroutines then share the threads that run them, and a Task that awaits a coroutine of the pool, or a
  /// coroutine that awaits a Task, changes no thread for it. The sleeps of Tasks are timers of the workers. The main
  /// actor, actors with executors, and Tasks that prefer an executor stay where they are. <doc:ThreadsOfAProgram> says
  /// when to use it, and what is different.
  ///
  /// ```swift
  /// guard CoroutineRuntime.runTasksOnWorkers() else { print(CoroutineRuntime.tasksRefusal ?? "") … }
  /// ```
  ///
  /// Tasks that Swift's own threads run by now stay there until they suspend. It cannot be undone. The option of
  /// ``co_main(stoppingOn:within:tasksOnWorkers:_:)`` and the environment variable `COROUTINE_TASKS=1` do the same.
  ///
  /// Never suspends, and takes some microseconds at the first call; any thread, before or after the first Task. A
  /// further call has no effect, and returns what the first one did.
  ///
  /// - Returns: Whether Tasks run on the workers; if not, ``tasksRefusal`` says why.
  @discardableResult
  public static func runTasksOnWorkers() -> Bool { TasksOnWorkers.outcome == nil }

  /// The reason for which ``runTasksOnWorkers()`` has returned false; nil if it has not.
  ///
  /// A sentence for people. Never suspends; any thread.
  public static var tasksRefusal: String? {
    TasksOnWorkers.hasBegun.load(ordering: .acquiring) ? TasksOnWorkers.outcome : nil
  }
}

enum TasksOnWorkers {
  fileprivate static let hasBegun = Atomic<Bool>(false)

  /// Why Tasks do not run on the workers; nil if they do.
  fileprivate static var outcome: String? {
    // Before the initialiser, which would never return: in a forked child this gives its thread another number, and
    // Swift's lock of the initialiser knows the one before (ForkedThread.c).
    ForkedChild.noteUse()
    return installed
  }

  private static let installed: String? = {
    hasBegun.store(true, ordering: .releasing)
    return install()
  }()

  /// Applies the environment variable; called when the first scheduler is made, so it makes none itself.
  static func applyEnvironment() {
    guard let setting = getenv("COROUTINE_TASKS").map({ String(cString: $0) }), !setting.isEmpty, setting != "0" else {
      return
    }
    guard setting == "1" else {
      misuse("COROUTINE_TASKS is '\(setting.asWord)'. Set it to 1, or leave it unset.")
    }
    sayIfRefused()
  }

  /// Installs it, and writes a line if that is refused.
  static func sayIfRefused() {
    guard let outcome else { return }
    writeToStandardError("Coroutine: Tasks do not run on the workers: \(outcome)\n")
  }

  private static func install() -> String? {
    if let other = otherExecutor { return other }
    switch cco_hook_tasks({ DefaultExecutor.enqueue(UnownedJob($0.assumingMemoryBound(to: SwiftJobHeader.self))) }) {
    case CCO_HOOK_SET: break
    case CCO_HOOK_MISSING: return "\(unknown): it has no hook for jobs"
    default:
      return "another library has taken Swift's hook for jobs, as SwiftNIO's "
        + "unsafeTryInstallSingletonPosixEventLoopGroupAsConcurrencyGlobalExecutor does: use one of the two"
    }
    let isReplaced = DefaultExecutor.beginIntercepting()
    defer { DefaultExecutor.endIntercepting() }
    guard isReplaced else {
      _ = cco_hook_tasks(nil)
      return "\(unknown): its default executor could not be replaced"
    }
    if let missing = Proof.missing() {
      _ = cco_hook_tasks(nil)
      return "\(unknown): \(missing)"
    }
    DefaultExecutor.usePool()
    return nil
  }

  /// The executor of somebody else, in a sentence; nil if Swift's own is there, or ours.
  private static var otherExecutor: String? {
    _ = DefaultExecutor.replacement
    let name = DefaultExecutor.nameBefore
    if ["Swift.DispatchGlobalTaskExecutor", "_Concurrency.DispatchGlobalTaskExecutor"].contains(name) { return nil }
    return "the program has a default executor of its own, \(name.asWord): use one of the two"
  }

  private static var unknown: String { "this version of Swift is not known (6.3 is)" }
}

// MARK: - The proof

private enum Proof {
  /// What happened; used by the proving thread only.
  private final class Seen: @unchecked Sendable {
    // Sound because one thread runs the Task.
    var jobs: [UnownedJob] = []
    var count = 0
    var sleeps: [UInt64] = []
    var hasBegun = false
    var hasYielded = false
    var hasEnded = false
  }

  /// Returns the first effect that is missing, in words; nil if there is none.
  static func missing() -> String? {
    let seen = Seen()
    let thread = UInt(bitPattern: cco_thread())
    let main = ObjectIdentifier(MainActor.executor)
    DefaultExecutor.whileIntercepting { outer in
      JobInterceptor { job in
        guard UInt(bitPattern: cco_thread()) == thread else { return outer?.takes(job) ?? false }
        seen.jobs.append(job)
        seen.count += 1
        return true
      } sleep: { job, nanoseconds in
        guard UInt(bitPattern: cco_thread()) == thread else { return outer?.takesSleep(job, nanoseconds) ?? false }
        seen.jobs.append(job)
        seen.sleeps.append(nanoseconds)
        return true
      }
    } _: {
      run(seen)
      while let job = seen.jobs.popLast() { job.runWithoutExecutor() }
    }
    if seen.count == 0 || !seen.hasBegun { return "a Task does not come to the default executor" }
    if !seen.hasYielded { return "Task.yield does not come to the default executor" }
    if !seen.hasEnded || seen.sleeps.count != 3 { return "sleeps do not come to the default executor" }
    let (hour, minute) = (3_600_000_000_000 as UInt64, 60_000_000_000 as UInt64)
    let isExact = seen.sleeps[0] <= 1_000 && isAbout(seen.sleeps[1], hour) && isAbout(seen.sleeps[2], minute)
    if !isExact { return "sleeps come to the default executor with another time: \(seen.sleeps) ns" }
    if ObjectIdentifier(MainActor.executor) != main { return "the main actor's executor has changed" }
    return nil
  }

  private static func run(_ seen: Seen) {
    Task.detached {
      seen.hasBegun = true
      await Task.yield()
      seen.hasYielded = true
      do {
        try await Task.sleep(nanoseconds: 1_000)
        try await Task.sleep(for: .seconds(3_600))
        try await SuspendingClock().sleep(until: .now.advanced(by: .seconds(60)))
        seen.hasEnded = true
      } catch {}
    }
  }

  /// Whether two durations are equal up to a tenth: an instant is turned into a duration a little later.
  private static func isAbout(_ first: UInt64, _ second: UInt64) -> Bool {
    first <= second + second / 10 && first >= second - second / 10
  }
}
