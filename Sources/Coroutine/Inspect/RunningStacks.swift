internal import CLinux
import Glibc
import Synchronization

// Where running coroutines are. A parked one has left its frames where they are read (Stacks.swift). A running one
// changes them, so its thread is asked, by a signal, as for the report of a stall (Stalls.swift). That disturbs the
// program, so only a coroutine is asked for that has run for long, and whose thread is in no system call that a signal
// would end.
//
// Limits
//  - The thread is known of a worker of the pool, and of a queue after the first CoroutineRuntime.onStall; that of
//    another loop is not.
//  - A thread that blocks SIGURG does not answer, nor one that has no processor for 20 ms. All questions of one dump
//    together wait for a tenth of a second.
//  - The coroutine may have gone on between the look and the answer; then it has no stack.
//  - In the first instructions of a function, the function that has called it is missing.

/// What the thread of a running coroutine does.
struct RunningThread {
  let number: Int32
  /// Nil if the kernel does not say.
  let activity: CoroutineRuntime.Stall.Activity?
}

/// Asks the threads of running coroutines where they are.
struct RunningStacks {
  /// The time after which a coroutine is asked for, in ns.
  static var least: UInt64 { 50_000_000 }
  /// How long all answers are waited for, in ns.
  private var patience: UInt64 = 100_000_000
  private let own = clinux_thread_id()

  /// Adds to an entry what its thread does, and the frames, if it has run for long.
  mutating func read(_ entry: inout StackReader.Entry, asks: Bool) {
    let inspected = entry.job
    guard inspected.state == .running, inspected.nanosecondsInState >= Self.least else { return }
    let host = inspected.job.currentScheduler.host
    let number =
      (host as? WorkerHost)?.threadID.load(ordering: .relaxed)
      ?? (host as? QueueHost)?.thread.load(ordering: .relaxed) ?? 0
    guard number != 0, number != own else { return }
    let activity = CoroutineRuntime.Stall.Activity(of: number)
    // The look at the thread is of the coroutine only if that has not moved since it was inspected.
    guard inspected.isUnmoved else { return }
    entry.thread = RunningThread(number: number, activity: activity)
    guard asks, patience > 0, let activity else { return }
    let start = Clock.now
    let (frames, isWhole) = ThreadStack.read(
      of: number,
      activity,
      since: inspected.mark,
      inspected.job,
      isOurs: host.hasOwnThread
    )
    patience -= min(patience, Clock.now - start)
    (entry.stack, entry.isCut) = (frames, !frames.isEmpty && !isWhole)
  }
}

extension CoroutineRuntime.Stall.Activity {
  /// What a thread does at this moment; nil if the kernel does not say.
  init?(of thread: Int32) {
    switch clinux_thread_call("/proc/self/task", thread) {
    case let call where call >= 0:
      self = .systemCall(clinux_call_name(call).map { String(cString: $0) } ?? "system call \(call)")
    case CLINUX_THREAD_RUNS.rawValue: self = .computing
    case CLINUX_THREAD_SLEEPS.rawValue: self = .asleep
    default: return nil
    }
  }
}

extension InspectedJob {
  /// What `stallMark` was when the job was inspected.
  fileprivate var mark: UInt64 { word &+ sinceWord }
  fileprivate var isUnmoved: Bool { job.record.stallMark == mark }
}

extension CoroutineRuntime.Snapshot.Coroutine {
  /// Why a coroutine that has run for long has no stack; nil if it has one, or need not have one.
  var whyWithoutStack: String? {
    guard state == .running, stack.isEmpty, since >= .nanoseconds(Int64(RunningStacks.least)) else { return nil }
    guard let activity else {
      return "no stack: its thread is not known; that of a queue is, once CoroutineRuntime.onStall was called"
    }
    return CoroutineRuntime.Stall.Activity.toleratesSignals(activity)
      ? "no stack: its thread has not answered" : "no stack: the signal that asks for it would end the system call"
  }
}
