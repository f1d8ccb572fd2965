internal import CLinux

// The time for which a coroutine has kept a worker's thread. Wall time would be wrong: on a machine with more threads
// than processors, a runnable thread may wait for a processor for longer than a stall lasts. So the watchdog counts two
// kinds of time, and not the third:
//
//   processor    the processor time of the thread, by its clock
//   asleep       the time for which it has slept in the kernel: in a system call, or for a page of memory
//   not counted  the thread was runnable without a processor, or the process was stopped
//
// The time between two samples counts as asleep if the thread is asleep at its end, and one of two conditions holds. It
// has used no processor time, so it was never awake. Or it was asleep at the beginning too, as in a loop of short
// sleeps; then the time is exact except for waits for a processor.
//
// The kernel does not report a thread that waits for a processor as asleep, so such time never counts. The time between
// two samples counts as at most `most`, because a process that is stopped, or a suspended machine, stops the watchdog
// too.
//
// If the kernel does not say whether a thread sleeps, because /proc is missing, a thread whose clock has not advanced
// counts as asleep for a tenth of the time. If the clock cannot be read, the thread counts as computing for a tenth of
// the time. A thread that only waits for a processor gets one now and then, and its worker then reads the clock. So a
// blocking call is noticed late in this case, and a coroutine is hardly ever blamed wrongly.
//
// Costs, for a worker that has not read its clock since the last inspection: one system call to read the thread's
// clock. Sixteen times in a threshold, if the thread has used its processor only partly, three more calls.

struct ThreadUse {
  /// The processor time since the beginning, in ns.
  private(set) var processor: UInt64 = 0
  /// The time that the thread has slept since the beginning, in ns.
  private(set) var asleep: UInt64 = 0
  /// The time of the last sample.
  private(set) var lastSample: UInt64 = 0
  /// The thread's clock then; negative if it could not be read.
  private var lastClock: Int64 = -1
  /// A system call, or a `clinux_thread_state`, at the last sample.
  private(set) var call = CLINUX_THREAD_RUNS.rawValue

  /// The most that the time between two samples counts, in ns: twice the longest time between two inspections.
  private static var most: UInt64 { 50_000_000 }
  /// The number of samples in the time after which a coroutine has stalled a worker.
  static var samples: UInt64 { 16 }

  /// The time that the coroutine has kept the thread, in ns.
  var total: UInt64 { processor + asleep }

  init() {}

  /// Begins at `now`.
  ///
  /// `thread` is 0 if the thread has not begun to run.
  init(of thread: Int32, _ now: UInt64) {
    lastSample = now
    if thread != 0 { lastClock = clinux_thread_time(thread) }
  }

  /// Whether it is time for the next sample; `threshold` is the time after which a coroutine has stalled a worker.
  func isDue(_ now: UInt64, _ threshold: UInt64) -> Bool {
    now > lastSample && now - lastSample >= threshold / Self.samples
  }

  /// Samples the thread; `tasks` is the directory of the process's threads.
  mutating func sample(_ thread: Int32, _ now: UInt64, in tasks: String) {
    let time = now - lastSample
    let counted = min(time, Self.most)
    let clock = thread == 0 ? -1 : clinux_thread_time(thread)
    let used = Self.used(from: lastClock, to: clock, counted)
    let wasAsleep = isAsleep
    (lastSample, lastClock) = (now, clock)
    guard thread != 0 else { return }
    processor += used
    // A thread that runs all the time is not worth the call.
    call = used > time / 8 * 7 ? CLINUX_THREAD_RUNS.rawValue : clinux_thread_call(tasks, thread)
    if call == CLINUX_THREAD_UNKNOWN.rawValue {
      if used == 0 { asleep += counted / 10 }
    } else if isAsleep, used == 0 || wasAsleep, counted > used {
      asleep += counted - used
    }
  }

  /// The processor time between two readings of the thread's clock; a tenth of the time if the clock cannot be read.
  private static func used(from first: Int64, to last: Int64, _ time: UInt64) -> UInt64 {
    guard last >= 0 else { return time / 10 }
    return first < 0 ? 0 : UInt64(max(0, last - first))
  }

  private var isAsleep: Bool { call >= 0 || call == CLINUX_THREAD_SLEEPS.rawValue }
}
