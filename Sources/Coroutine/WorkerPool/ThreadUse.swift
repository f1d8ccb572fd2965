internal import CLinux

// How much of a worker's time a coroutine has taken. Wall time does not say that: on a machine with more threads than
// processors, a thread that could run may wait for its turn for longer than a stall lasts. So the watchdog counts two
// kinds of time, and leaves out what remains:
//
//   processor   the processor time of the thread, by its clock
//   asleep      the time for which it has slept in the kernel: in a system call, or for a page of memory
//   (the rest)  it could have run, and had no processor, or the process was stopped
//
// The time between two looks counts as asleep if the thread is asleep at its end, and either has used no processor
// meanwhile, so that it has not been awake at all, or was asleep at its beginning as well. The second rule counts a
// loop of short sleeps, for which it is exact but for the waits for a processor in between.
//
// A thread that waits for a processor is not asleep for the kernel, so it never counts. The time between two looks
// counts as at most `most`: a process that was stopped, and the whole machine, stand still for longer, and so does the
// watchdog.
//
// Where the kernel does not say whether a thread sleeps, because /proc is missing, a thread whose clock has not moved
// counts as asleep for a tenth of the time; where the clock cannot be read, as computing for a tenth of the time. A
// thread that only lacks a processor gets one now and then, and its worker then looks at its clock. So a call that
// blocks is noticed late there, and an innocent coroutine hardly ever.
//
// What it costs: for a worker that the watchdog finds busy with one look at the clock, one system call to read the
// thread's clock, and eight times in a threshold, if it used its processor only in part, three more (about 5 µs).

struct ThreadUse {
  /// The processor time since the beginning, in ns.
  private(set) var processor: UInt64 = 0
  /// The time that the thread has slept since the beginning, in ns.
  private(set) var asleep: UInt64 = 0
  /// The time of the last look.
  private(set) var lastLook: UInt64 = 0
  /// The thread's clock then; negative if it could not be read.
  private var lastClock: Int64 = -1
  /// A system call, or a `clinux_thread_state`, at the last look.
  private var call = CLINUX_THREAD_RUNS.rawValue

  /// The most that the time between two looks counts, in ns: twice the longest time between two inspections.
  private static var most: UInt64 { 50_000_000 }
  /// The number of looks in the time after which a coroutine has stalled a worker.
  private static var looks: UInt64 { 8 }

  /// The time that the coroutine has kept the thread, in ns.
  var total: UInt64 { processor + asleep }

  init() {}

  /// Begins at `now`.
  ///
  /// `thread` is 0 if the thread has not begun to run.
  init(of thread: Int32, _ now: UInt64) {
    lastLook = now
    if thread != 0 { lastClock = clinux_thread_time(thread) }
  }

  /// Whether it is time for the next look; `threshold` is the time after which a coroutine has stalled a worker.
  func isDue(_ now: UInt64, _ threshold: UInt64) -> Bool { now > lastLook && now - lastLook >= threshold / Self.looks }

  /// Looks at the thread; `tasks` is the directory of the process's threads.
  mutating func look(at thread: Int32, _ now: UInt64, in tasks: String) {
    let time = now - lastLook
    let counted = min(time, Self.most)
    let clock = thread == 0 ? -1 : clinux_thread_time(thread)
    let used = Self.used(from: lastClock, to: clock, counted)
    let wasAsleep = isAsleep
    (lastLook, lastClock) = (now, clock)
    guard thread != 0 else { return }
    processor += used
    // A thread that runs all the time is not worth a look.
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

  /// What the thread has done for most of the time; nil if that was to sleep in a call that it is not in just now.
  var activity: CoroutineRuntime.Stall.Activity? {
    if processor >= asleep { return .computing }
    if call >= 0 { return .systemCall(clinux_call_name(call).map { String(cString: $0) } ?? "system call \(call)") }
    return call == CLINUX_THREAD_RUNS.rawValue ? nil : .asleep
  }
}
