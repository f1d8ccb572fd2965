import Synchronization

// Samples for the histograms of CoroutineRuntime.metrics. They are taken where the driver knows the time already, so a
// switch, a wake-up and a launch pay nothing.
//
//   histogram      sample
//   runLength      whenever the driver reads its clock: the mean of the runs since it last did, once for each of them
//   wakeToRun      the first job that the driver takes after such a read, if it was launched or has yielded: the time
//                  since then; and of eight messages that wake an idle scheduler, one: the time until the drain begins
//   timerLateness  one timer in `Samples.timers`: from its deadline to the time for which the drain fires its timers
//
// The time of a message. A message to an idle scheduler starts a drain, which is a call of the kernel or of Dispatch;
// one read of the clock in eight of them does not show. Only the thread that has moved the inbox out of `idle`
// (Inbox.swift) uses `wakeUps` and `wokenAt`, until it submits the drain, which uses them then. By the inbox's word it
// has acquired what the last drain did before it went idle.
//
// No sample depends on how the jobs of a world are chosen, or changes that: worlds have no drains and so take only the
// samples of timers, in their own time.

enum Samples {
  /// One in so many timers is measured.
  static var timers: UInt64 { 64 }
  /// One in so many messages that wake an idle scheduler is measured.
  static var wakeUps: UInt { 8 }
}

extension Scheduler {
  /// Adds the switches since the last call to the counters, and returns their number.
  ///
  /// Called by the driver, wherever it reads the clock, and before it goes idle.
  @inline(__always) @discardableResult
  func publishSwitches(_ carrier: UnsafeMutablePointer<Carrier>) -> UInt64 {
    let count = UInt64(truncatingIfNeeded: carrier.pointee.granted &- carrier.pointee.switchesLeft)
    carrier.pointee.granted = carrier.pointee.switchesLeft
    counters.add(count, to: .switches)
    return count
  }

  /// Reads the clock, and publishes what the carrier has counted.
  func readClock(_ carrier: UnsafeMutablePointer<Carrier>) {
    let runs = publishSwitches(carrier)
    followRecorder(carrier)
    let now = clock
    if runs > 0 { counters.note((now &- carrier.pointee.now) / runs, in: .runLength, times: runs) }
    carrier.pointee.now = now
    lastClockRead.store(now, ordering: .relaxed)
  }

  /// Notes how long a job that the driver has taken was ready; the driver has just read the clock.
  func noteReady(_ job: JobRef, _ now: UInt64) {
    let kind = job.pointee.waitKind.load(ordering: .relaxed)
    guard kind == WaitKind.start.rawValue || kind == WaitKind.ready.rawValue else { return }
    let since = job.pointee.waitingSince.load(ordering: .relaxed)
    // 0: it was launched by another thread.
    if since != 0 { counters.note(now > since ? now - since : 0, in: .wakeToRun) }
  }

  /// Remembers the time of a message that has woken this scheduler, if it is measured.
  ///
  /// Called by the thread that has moved the inbox out of `idle`, before it submits the drain.
  func noteWakeUp() {
    wakeUps &+= 1
    if wakeUps % Samples.wakeUps == 0, !host.controlsOrder { wokenAt = clock }
  }

  /// Notes how long after the message that has woken this scheduler a drain begins, if that is measured.
  @inline(__always)
  func noteDrain(_ now: UInt64) {
    if wokenAt == 0 { return }
    counters.note(now > wokenAt ? now - wokenAt : 0, in: .wakeToRun)
    wokenAt = 0
  }

  /// Counts a timer that fires at `now`, and measures how late it is if it is time to; called under the timers' lock.
  func noteTimer(_ deadline: UInt64, _ now: UInt64) {
    if counters[.timers] % Samples.timers == 0 {
      counters.note(now > deadline ? now - deadline : 0, in: .timerLateness)
    }
    counters.add(to: .timers)
    if Events.isOn.load(ordering: .relaxed) { noteLateTimer(deadline) }
  }

  /// Records a timer that is late by a millisecond or more.
  private func noteLateTimer(_ deadline: UInt64) {
    let now = clock
    guard now > deadline, now - deadline >= 1_000_000 else { return }
    Events.note(.lateTimer, nil, min((now - deadline) / 1_000, UInt64(UInt32.max)))
  }

  /// Resumes a job in a world, whose carriers have no budget.
  func resumeInWorld(_ job: JobRef, _ carrier: UnsafeMutablePointer<Carrier>) {
    carrier.pointee.granted += 1
    publishSwitches(carrier)
    followRecorder(carrier)
    if carrier.pointee.ring == nil { resume(job, carrier) } else { resumeRecorded(job, carrier) }
  }
}
