internal import CCoroutine
import Synchronization

// Samples for the histograms: how long a woken coroutine waits until it runs, and how long a coroutine runs until it
// gives its thread back. One in `Samples.interval` is measured. Switches and wake-ups that are not measured pay
// nothing: they find out by tests that they make anyway.
//
// Runs. When the driver publishes its switches (Counters.swift) and `interval` have passed since the last sample, it
// sets `Samples.run` in the carrier's `watch`. The next job that the driver resumes runs without a budget: when it
// waits, ends or yields, it switches to the driver, and not to the next job. The driver reads the clock before and
// after.
//
// Wake-ups. At the same time the driver clears the carrier's `wakes`. A wake-up compares that field with the job's
// scheduler to find the ready queue (Carrier.makeReady), so the next one takes the long way (`makeReadySlowly`), where
// the waker measures it, and sets the field again. Wake-ups from other schedulers and threads take the long way always:
// each thread counts them, and measures one in `interval`.
//
//   the waker, which has claimed the wait       the drain that takes the job
//   stores the time into `waitSource`           a job with the flag is left to the driver (ReadyQueue.mayRun)
//   sets `sampled` in the flags                 clears the flag, reads the clock, notes the difference
//
// Why `waitSource` is free. The waker has claimed the wait, so no other thread uses the word as a source: a dump reads
// `wait` again after it (Inspection.swift). The job stores the source of its next wait after it was resumed. Only jobs
// that have begun are measured, because until its first wait the word has the size of the job's stack.
//
// A job that another worker has stolen carries its time with it. All hosts but worlds have one clock. A job does not
// leave a world.

enum Samples {
  /// One in so many switches, wake-ups and timers is measured.
  static var interval: Int { 64 }

  // Bits of `Carrier.watch`.

  /// The next run is measured.
  static var run: UInt8 { 1 }
  /// The flight recorder is on.
  static var recording: UInt8 { 2 }
}

extension Scheduler {
  /// Adds the switches since the last call to the counters, and begins a sample if it is time to.
  ///
  /// Called by the driver, wherever it reads the clock, and before it goes idle.
  @inline(__always)
  func publishSwitches(_ carrier: UnsafeMutablePointer<Carrier>) {
    let count = carrier.pointee.granted &- carrier.pointee.switchesLeft
    carrier.pointee.granted = carrier.pointee.switchesLeft
    counters.add(UInt64(truncatingIfNeeded: count), to: .switches)
    untilSample &-= count
    if untilSample <= 0 { beginSample(carrier) }
  }

  /// Lets the driver measure the next run, and a waker the next wake-up.
  func beginSample(_ carrier: UnsafeMutablePointer<Carrier>) {
    untilSample = Samples.interval
    carrier.pointee.watch |= Samples.run
    carrier.pointee.wakes = nil
  }

  /// Resumes a job without a budget, and measures its run if it is time to; while the recorder is on, others after it.
  @inline(never)
  func resumeWatched(_ job: JobRef, _ carrier: UnsafeMutablePointer<Carrier>) {
    let left = carrier.pointee.switchesLeft
    carrier.pointee.grant(0)
    let isMeasured = carrier.pointee.watch & Samples.run != 0
    carrier.pointee.watch &= ~Samples.run
    let start = isMeasured ? clock : 0
    var others = 0
    if let ring = carrier.pointee.ring {
      // The drain has counted the first one.
      let most = isMeasured ? 1 : 1 + max(0, left)
      others = ring._withUnsafeGuaranteedRef { resumeRecorded(job, carrier, in: $0, atMost: most) } - 1
      carrier.pointee.granted &+= others
    } else {
      resume(job, carrier)
    }
    if isMeasured {
      readClock(carrier)
      counters.note(carrier.pointee.now &- start, in: .runLength)
    }
    // Below zero: the job has yielded because it is time to poll.
    carrier.pointee.grant(carrier.pointee.switchesLeft == 0 ? left - others : 0)
  }
}

extension Scheduler {
  /// Resumes a job in a world, whose carriers have no budget.
  func resumeInWorld(_ job: JobRef, _ carrier: UnsafeMutablePointer<Carrier>) {
    job.endSample(in: self)
    carrier.pointee.granted += 1
    publishSwitches(carrier)
    followRecorder(carrier)
    if carrier.pointee.watch == 0 { resume(job, carrier) } else { resumeWatched(job, carrier) }
  }
}

extension Carrier {
  /// Makes a job ready that belongs to another scheduler, or whose wake-up is to be measured.
  ///
  /// The caller has claimed its wait, or it has not started.
  @usableFromInline @inline(never)
  static func makeReadySlowly(_ job: JobRef) {
    Events.note(.wake, job)
    if let carrier = current, let readyQueue = carrier.pointee.ownReadyQueue(of: job) {
      if carrier.pointee.watch & Samples.recording == 0 {
        carrier.pointee.wakes = carrier.pointee.scheduler
        job.beginSample()
      } else if job.isSampleDue {
        job.beginSample()
      }
      return readyQueue.append(job)
    }
    if job.isSampleDue { job.beginSample() }
    sendRemotely(job)
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether the calling thread measures this wake-up, one in `Samples.interval`.
  var isSampleDue: Bool {
    let words = cco_thread()
    words.pointee.wakes &+= 1
    return words.pointee.wakes % UInt32(Samples.interval) == 1
  }

  /// Measures the wake-up of a job whose wait the caller has claimed.
  func beginSample() {
    // Not in its frames, or an entry: it has no wait of its own.
    guard pointee.wait.load(ordering: .relaxed) & 0xFF > 1, !isEntry else { return }
    let now = pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.clock }
    pointee.waitSource.store(UInt(now), ordering: .relaxed)
    // Releasing, for the drain that sees the flag.
    _ = pointee.flags.bitwiseOr(JobFlags.sampled, ordering: .releasing)
  }

  /// Ends the measurement of a wake-up in the drain that has taken the job, and notes it.
  func endSample(in scheduler: Scheduler) {
    guard pointee.flags.load(ordering: .relaxed) & JobFlags.sampled != 0 else { return }
    let flags = pointee.flags.bitwiseAnd(~JobFlags.sampled, ordering: .acquiringAndReleasing).oldValue
    guard flags & JobFlags.sampled != 0 else { return }
    let start = UInt64(pointee.waitSource.load(ordering: .relaxed))
    let now = scheduler.clock
    scheduler.counters.note(now > start ? now - start : 0, in: .wakeToRun)
  }
}
