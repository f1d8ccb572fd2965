internal import CCoroutine

// A process that was created by fork() has one thread. The threads that ran schedulers, timers, the pool for blocking
// work and the poller of descriptors stayed in the parent; so did the holders of locks (the C core repairs its own
// locks, see its Fork.c). A job launched here would wait for ever, so it fails instead.
//
//   launch          the job's scheduler is `ForkedChild.scheduler`, whose submit fails each job on the launcher's
//                   thread
//   immediate start fails before it has a stack
//   wait verbs      throw `afterFork`: fork has taken the thread out of the coroutine that it ran
//   Job.wait        throws `afterFork` for a job that was launched in the parent and has not ended
//   generators      work: they need no thread but the caller's
//
// No hot path tests for a forked child: inside a coroutine `Launch.scheduler` returns before that test.

enum ForkedChild {
  static var isHere: Bool { cco_facts.forked != 0 }

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
  /// Fails every job that was pushed.
  ///
  /// The caller has moved the inbox out of `idle`.
  func refuseAll() {
    repeat {
      inbox.takeAll(isShared: false) { message in
        if case .job(let job) = message {
          AnyJob.fail(job, job.ownCancellation ?? CoroutineError.afterFork)
        } else {
          handle(message)
        }
      }
    } while !inbox.goIdle()
  }
}
