internal import CCoroutine
public import Dispatch
import Synchronization

// The targets on which coroutines are launched, and to which they move.
//
//   target               its scheduler                                                  its anchor
//   DispatchQueue        the queue's; in a simulated world, the world's for the queue   the queue
//   HostedScheduler      the host's                                                     none
//   WorkerPoolExecutor   the caller's worker, else the next worker; in a world, the     none
//                        world's for the pool
//   CoroutineWorker      the worker                                                     none
//
// A forked child that does not have the target's threads ends where it asks for the scheduler (ForkedChild.swift).
//
// `co_launch`, `Scope.launch` and `co_switch` exist twice, for a queue and for any target. Only where the parameter is
// a queue can a call leave it out, or write `nil` or `.main`. The general ones are disfavoured. Otherwise the compiler
// would check a call that names a queue against both, and so the innermost of n nested bodies 2^n times.

/// What coroutines run on: a `DispatchQueue`, the ``HostedScheduler`` of another library's loop, or the workers,
/// ``WorkerPoolExecutor/shared``.
///
/// `co_launch(on:)`, `Scope.launch(on:)` and `co_switch(to:)` take any of them; with CoroutineNIO, event loops too.
/// Only the library's types conform.
public protocol LaunchTarget: Sendable {
  /// The destination of a coroutine that the calling code launches on the target, or that moves to it.
  ///
  /// Any thread; does not suspend.
  var _destination: _LaunchDestination { get }
}

/// The scheduler of a ``LaunchTarget``, and the object that keeps that scheduler in memory.
public struct _LaunchDestination {
  let scheduler: Scheduler
  /// The owner of the scheduler, which is held while a job of the scheduler is live.
  @usableFromInline let anchor: Anchor?

  /// The scheduler for a launch, with a reference for the job's record unless it is immortal.
  @usableFromInline var forLaunch: Unmanaged<Scheduler> { scheduler.forRecord() }
}

extension DispatchQueue: LaunchTarget {
  /// The queue, or what a simulated world has in its place.
  public var _destination: _LaunchDestination {
    ForkedChild.use(CCO_USES_QUEUES)
    return _LaunchDestination(scheduler: QueueHost.scheduler(for: self), anchor: self)
  }
}

extension HostedScheduler: LaunchTarget {
  /// The host's coroutines.
  public var _destination: _LaunchDestination {
    ForkedChild.use(CCO_USES_THREADS)
    return _LaunchDestination(scheduler: scheduler, anchor: nil)
  }
}

extension WorkerPoolExecutor: LaunchTarget {
  /// The worker that the calling coroutine belongs to; elsewhere one without work, if there is one.
  public var _destination: _LaunchDestination {
    if let job = Carrier.current?.pointee.job {
      // The job's scheduler, and not the carrier's: a job of a queue may have been started immediately on a worker.
      let scheduler = job.pointee.scheduler.load(ordering: .relaxed).takeUnretainedValue()
      if let pool = scheduler.readyQueue.pointee.workerPool, pool.takeUnretainedValue() === WorkerPool.shared {
        return _LaunchDestination(scheduler: scheduler, anchor: nil)
      }
    }
    return _LaunchDestination(scheduler: Launch.worker, anchor: nil)
  }
}
