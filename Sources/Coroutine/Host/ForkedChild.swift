internal import CCoroutine

// A process that was created by fork() has one thread. The threads that ran schedulers, timers, the pool for blocking
// work and the poller of descriptors stayed in the parent; so did the holders of locks (the C core repairs its own
// locks, see its Fork.c). A job launched here would wait for ever, so it fails instead.
//
// Not so in a child of a process that had not used the runtime, which may use it as any process. Fork.c has the states.
// The first use is the first of
//   - a launch, in any mode, and a HostedScheduler;
//   - the scheduler of a queue: for an executor, or a handler that runs on a queue;
//   - a handler without a queue that begins to run, a timer of a promise, a Swift job of WorkerPoolExecutor;
//   - a promise for a block of a queue, or for a Task;
//   - a signal that is handled, and a simulated world.
// Everything else that the library makes needs one of these: blocking calls and waits for descriptors are made in
// coroutines. Each asks `refuses` before it takes a lock. Generators, channels, promises, locks, dumps, and sockets and
// listeners that no coroutine has waited for, are data, which a child inherits whole.
//
// In a child that may use the runtime, but whose parent had used Dispatch, launches on queues fail, and the worker pool
// works.
//
// Where it is refused:
//
//   launch          the job's scheduler is `ForkedChild.scheduler`, whose submit fails each job on the launcher's
//                   thread
//   immediate start fails before it has a stack
//   wait verbs      throw `afterFork`: fork has taken the thread out of the coroutine that it ran
//   Job.blockingWait        throws `afterFork` for a job that was launched in the parent and has not ended
//   generators      work: they need no thread but the caller's
//
// No hot path tests for a forked child: inside a coroutine `Launch.scheduler` returns before that test. A launch from
// outside tests one word, which is set in every process that has launched before.

enum ForkedChild {
  /// Whether this is the child of a process that had used the runtime.
  static var isHere: Bool { cco_forked() == CCO_FORKED_USED }

  /// Whether this process may not use threads, or queues; if it may, this is a use.
  @inline(__always)
  static func refuses(_ what: cco_use) -> Bool { !cco_uses(what) && !cco_begin_use(what) }

  /// Notes a use that is not refused: in the child of a process that had used the runtime, it has no effect.
  @inline(__always)
  static func noteUse() { _ = refuses(CCO_USES_THREADS) }

  /// The scheduler of jobs that are launched in the child.
  ///
  /// Created in the child, by its first launch. It is not in the registry, because another thread may have held the
  /// registry's lock at the fork.
  static let scheduler: Scheduler = {
    let host = RefusingHost()
    return Scheduler(host: host, anchor: host, pool: nil)
  }()
}

/// A host that fails each job at once, on the thread that sends it.
private final class RefusingHost: Host, @unchecked Sendable {
  // Sound because it has no state.
  init() { super.init(label: "forked child", refusesJobs: true) }

  override func submit(_ scheduler: Scheduler, _ anchor: Anchor?) -> Bool {
    scheduler.refuseAll()
    return true
  }
}

extension Scheduler {
  /// Whether this is `ForkedChild.scheduler`.
  var refusesJobs: Bool { host.refusesJobs }

  /// Fails every job that was pushed.
  ///
  /// The caller has moved the inbox out of `idle`.
  func refuseAll() {
    repeat {
      inbox.takeAll(as: nil) { message in
        if case .job(let job) = message {
          AnyJob.fail(job, job.ownCancellation ?? CoroutineError.afterFork)
        } else {
          handle(message)
        }
      }
    } while !inbox.goIdle()
  }
}
