internal import CCoroutine

// The frames of the coroutine that a thread runs. The thread is interrupted by a signal, whose handler walks them
// (AskThread.c). Only the thread of a reported stall is asked: a signal makes system calls of the program's code fail.

enum ThreadStack {
  private static var most: Int { 128 }
  /// How long an answer is waited for, in ns: of a thread of ours, and of one that may block the signal, as those of
  /// Dispatch do.
  private static var patience: UInt64 { 20_000_000 }
  private static var shortPatience: UInt64 { 4_000_000 }

  /// The frames of `job`, which the thread runs since its `stallMark` was `mark`; empty if it could not be asked, or
  /// has gone on meanwhile.
  ///
  /// One call at a time for each thread; two threads may ask at once, and then one of them gets nothing.
  static func read(
    of thread: Int32,
    _ activity: CoroutineRuntime.Stall.Activity,
    since mark: UInt64,
    _ job: AnyJob,
    isOurs: Bool
  ) -> [UInt] {
    let time = isOurs ? patience : shortPatience
    guard thread != 0, activity.toleratesSignals else { return [] }
    let frames = [UInt](unsafeUninitializedCapacity: most) { buffer, count in
      count = cco_ask_thread(thread, buffer.baseAddress.unsafelyUnwrapped, buffer.count, time)
    }
    return job.record.stallMark == mark ? frames : []
  }
}

extension CoroutineRuntime.Stall.Activity {
  /// Whether a signal with SA_RESTART changes nothing for the interrupted code.
  ///
  /// The kernel restarts the other calls not, or not those with a time limit (signal(7)).
  fileprivate var toleratesSignals: Bool {
    switch kind {
    case .computing: true
    case .systemCall(let name):
      ["read", "write", "readv", "writev", "futex", "flock", "wait4", "waitid", "openat", "fsync", "fdatasync"]
        .contains(name)
    case .asleep: false
    }
  }
}
