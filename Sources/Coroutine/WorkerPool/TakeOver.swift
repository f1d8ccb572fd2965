import Synchronization

// Taking over the work of a stuck worker: a worker whose current job computes for long, or blocks its thread, so that
// its drain reaches nothing else. It does what stealing does (WorkerPool.swift), from more sources. The watchdog finds
// stuck workers, and only sends another worker the request (Watchdog.swift). That worker, the rescuer, runs `takeOver`
// in its own drain, between two of its jobs.
//
//   source                what the rescuer does                     what excludes the victim, and other rescuers
//   due timers            fires them: jobs and interrupts           `timerLock`
//   ready jobs, Swift     takes half of them, as a thief does; all  the lock of the ready queue
//   jobs that wait        Swift jobs if the victim has no thread
//   messages: jobs        takes those that may move                 `taking`
//   messages: interrupts  inspects the jobs, in the victim's place  `taking`; for the frames JobRecord.swift
//   messages: work        sends it to itself                        `taking`
//   handlers              runs them, in their order                 HandlerQueue.swift: one runner at a time
//
// Timers come first, because those of deadlines send interrupts. Handlers come last, and interrupts before them:
// handlers are foreign code, and the release of an interrupted job may run some. That code may block the rescuer until
// a job runs that was taken over with it. So all jobs and all work are in the rescuer's ready queue and inbox by then,
// from where another worker takes them over. For the same reason the work is not run here, because a request ends with
// handlers; and the rescuer takes it out of its inbox one item a round (Scheduler.handle).
//
// Interrupts still wait in its hands behind interrupts, and calls of timers behind such calls, which may resume a Task
// on an executor of the program. In an ordinary drain, the jobs of a batch also wait behind the interrupts before them.
//
// What remains with the victim: jobs that keep their thread or are not switched out, interrupts of jobs that do not
// wait, the jobs of Swift actors that live on the worker, and the message that makes its drain read the clock. They may
// remain for as long as the victim is stuck. So the watchdog asks only if there is something else
// (`hasWorkToTakeOver`). Otherwise it would wake a worker in vain at each inspection, or start the threads of spare
// workers. It tests what the rescuer tests, under the same locks. So an interrupt is taken over once its job waits.
//
// The events of its descriptors are not in the table. They may be for coroutines that are on other workers by now, and
// that need no rescuer; so the watchdog delivers them itself (Poller.takeForOwner).
//
// The victim may return at any step, and several rescuers may have been sent: each source is used by one of them at a
// time, and no step relies on what an earlier one has seen.
//
// Nothing is lost or doubled. A timer, a job or a message is taken out of its source by one thread, under the lock of
// the source. It is handled at once, or goes to the ready queue or the inbox of the rescuer, whose drain runs now, and
// so reaches it before it goes idle. A job has its new scheduler before it is in that queue. The job's mover has
// claimed its wait, or found the job in an inbox or a ready queue, and so is its only mover (`mayMove`). A message that
// a rescuer may not take goes back: below newer messages (Inbox.swift), or, for an interrupt whose job cannot be taken
// just now, to the scheduler where the job is. If the victim went idle while its inbox seemed to be empty, the rescuer
// submits its drain.
//
// A request that is late does no harm: it finds nothing to take, or what it takes would have been run by the victim a
// little later. One in the inbox of a worker that has become stuck itself is taken over as work. The watchdog does not
// send another one before the first has begun (`isRescued`), or has had eight inspections for it: otherwise it would
// ask a new spare worker at each inspection until the first one's thread has started.
//
// A worker whose thread cannot be started asks as well (`goWithoutThread` in WorkerHost.swift), through the thread that
// owns its drain, and at each attempt to submit: so at each inspection. It asks only while no request is under way
// (`isRescued`), because a worker with a thread may run fewer requests than there are inspections, and its inbox would
// grow. That loses nothing. A request clears the flag before it looks for messages; the asker reads the flag after it
// has seen the messages. So a request that the asker finds set has either not begun, and will find these messages, or
// has begun since, and the next inspection asks again. One that a stuck worker has taken is taken over as work.
//
// Each promised order is kept. Jobs of workers have none. Handlers keep theirs, because the queue changes its runner,
// and not the handlers their queue. Of the messages only Swift jobs have one, and they stay. Work in the inbox of a
// worker is a request, for a take-over or for an inspection, and any worker may run it at any time.

extension Scheduler {
  /// Asks this worker to take over what `victim` does not reach.
  ///
  /// Called by the watchdog; any thread.
  func askToTakeOver(from victim: Scheduler) {
    victim.asWorker { $0.isRescued.store(true, ordering: .relaxed) }
    // The request itself may be taken over, so it reads which worker runs it.
    let request: @Sendable () -> Void = {
      victim.asWorker { $0.isRescued.store(false, ordering: .relaxed) }
      let rescuer = Carrier.current?.pointee.scheduler
      rescuer?._withUnsafeGuaranteedRef { if $0 !== victim { $0.takeOver(from: victim) } }
    }
    push(.work(ClosureWork.retained(request, nil)))
  }

  /// Takes over what `victim`, another worker of the pool, does not reach.
  ///
  /// Called in this worker's drain, outside any coroutine.
  func takeOver(from victim: Scheduler) {
    let now = clock
    if victim.nextTimer.load(ordering: .relaxed) <= now { victim.fireTimers(now, ifFree: true) }
    // All of what a worker without a thread has: nothing would ask again for the other half.
    repeat {
      var (stolen, swiftJobs) = victim.giveHalf(to: self, atLeast: 0)
      keep(&stolen, &swiftJobs)
    } while victim.lacksThread && victim.hasSwiftJobs
    var taken = victim.asWorker { victim.inbox.takeOut(from: $0, where: victim.mayBeTakenOver) }
    if taken.mustStart { victim.submit() }
    var interrupts = WorkQueue()
    while let message = taken.messages.popFirst() {
      switch message {
      case .job(let job):
        job.pointee.scheduler.store(.passUnretained(self), ordering: .releasing)
        noteSteal(of: 1)
        readyQueue.append(job)
      case .work(let item):
        if Interrupt.owned(by: item) == nil { push(message) } else { interrupts.append(message) }
      case .swiftJob: victim.push(message)
      }
    }
    while case .work(let item)? = interrupts.popFirst() {
      if let interrupt = Interrupt.owned(by: item) { victim.handle(interrupt) }
    }
    if victim.runHandlers().isReady { victim.sendTimerWakeup() }
  }

  /// Whether a rescuer would find anything on this worker.
  ///
  /// Called by the watchdog; any thread.
  func hasWorkToTakeOver(at now: UInt64) -> Bool {
    nextTimer.load(ordering: .relaxed) <= now || hasReadyHandlers || readyQueue.hasMovable || hasSwiftJobs
      || asWorker { inbox.contains(from: $0, where: mayBeTakenOver) }
  }

  /// Whether a rescuer may handle a message of this worker's inbox.
  private func mayBeTakenOver(_ message: Inbox.Message) -> Bool {
    switch message {
    case .job(let job): job.hold.mayMove
    case .work(let item):
      // The interrupt of a job that runs would go back and forth between the two workers.
      Interrupt.owned(by: item)?._withUnsafeGuaranteedRef { $0.job.record.seemsWaiting } ?? (item != timerWakeup.item)
    case .swiftJob: false
    }
  }
}
