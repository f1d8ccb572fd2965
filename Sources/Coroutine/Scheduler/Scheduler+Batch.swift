import Synchronization

// Batches of events. One poll of a worker's descriptors may wake many coroutines, and most of them run for some
// microseconds: read, answer, wait. To wake another worker for such a batch costs more than it saves: two system calls
// for the wake-up and the sleep, two to measure the steal (WorkerHost.swift), and cold caches.
//
// Rule. A worker holds a batch, together with its other ready jobs. No other worker is woken for it, and none steals
// from it unless it was offered work. The worker ends the hold
//   - at once, if the batch is expected to last longer than a time slice, by the mean duration of the last resumes;
//   - at the end of the time slice;
//   - when it adds any other job to its ready queue, as a launch does.
// When it ends the hold, it offers the remaining jobs.
//
// How long a ready job can wait while another worker is idle. The drain reads the clock before the last job of a batch,
// and after `firstClockRead` of its jobs at most. After that, it reads the clock when as many have run as are expected
// to take an eighth of a time slice. So a job of a batch waits for about a time slice, and if the jobs get longer all
// at once, for those that run before the next read. If one job does not end, it waits for a take-over (2 to 4 ms),
// which does not respect the hold.
//
// No job is forgotten. The worker writes `isHeld` under the lock of its queue, and other workers read it under that
// lock. The end of a hold is like a push (WorkerPool.swift): it clears `isHeld` under the lock, and reads the idle bits
// after that. A worker that goes idle sets its bit, and inspects the queue after that. So it steals, or its bit is
// seen. A hold that outlives its jobs hides no job: the next job that is added ends it, or is held itself.

extension Scheduler {
  /// The number of jobs of a batch after which the clock is read at the latest.
  private static var firstClockRead: Int { 4 }

  /// Expects `count` ready jobs after a batch was added: plans when to read the clock, or ends the hold.
  ///
  /// Called in the drain.
  func expectBatch(of count: Int, _ carrier: UnsafeMutablePointer<Carrier>) {
    guard count > 1 else { return }
    if UInt64(count) &* timeSlice.mean > TimeSlice.slice { readyQueue.endHold() }
    timeSlice.allotted = min(timeSlice.allotted, Self.firstClockRead, count - 1)
    carrier.pointee.grant(min(carrier.pointee.switchesLeft, timeSlice.allotted))
  }
}

extension Carrier {
  /// Makes the jobs ready that the events of one poll have woken, and whose waits the caller has claimed.
  ///
  /// Jobs that other workers have stolen come back.
  static func makeReady(batch: inout JobQueue) {
    var mine = JobQueue()
    let carrier = current
    Events.note(.poll, nil, UInt64(batch.count))
    while let job = batch.popFirst() {
      Events.note(.wake, job)
      if let carrier, carrier.pointee.ownReadyQueue(of: job) != nil || takeAlong(job, carrier) {
        mine.append(job)
      } else {
        job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.push(.job(job)) }
      }
    }
    guard let carrier, !mine.isEmpty, let readyQueue = carrier.pointee.readyQueue else { return }
    let count = readyQueue.appendHeld(&mine)
    carrier.pointee.scheduler?._withUnsafeGuaranteedRef { $0.expectBatch(of: count, carrier) }
  }
}
