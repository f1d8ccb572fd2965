import Glibc
import Synchronization

// The dumps that SIGUSR2 asks for. The thread that takes signals (SignalHub) notices each of them and must not wait. A
// dump may wait: it takes locks, and writes into a pipe that may be full. A queue would not do, because all threads of
// Dispatch may be blocked, or, in a forked child, have stayed in the parent. So a thread of its own writes, and ends.
//
// `wanted` counts the signals since the last dump began: 0 while no thread writes.
//
//   0 --signal: a thread starts--> 1 --signal--> 2 …
//   n --written--> 0: the thread ends          if no signal has come since the thread has read n
//   n --written--> n: it writes one more dump  otherwise
//
// One thread writes: only the signals' thread leaves 0, and only the thread that writes goes back to it. No signal is
// lost: it comes before that step, which then fails, or it finds 0.

extension CoroutineRuntime {
  private static let dumpsOnSignal = Atomic<Bool>(false)
  private static let dumpsStacks = Atomic<Bool>(false)
  private static let wanted = Atomic<UInt>(0)

  /// Makes SIGUSR2 write ``dump(_:)`` to standard error, even while every queue is stuck.
  ///
  /// Signals that arrive while a dump is being written cause one more dump. The signal is noticed also if the process
  /// was started with it blocked. Where the process has met a limit on threads, a signal has no effect. A program that
  /// does not call this does the same, with `.stacks`, if the environment variable COROUTINE_DUMP is `SIGUSR2` when it
  /// first uses the runtime.
  ///
  /// - Parameter detail: The form of the dump; that of the last call counts.
  public static func dumpOnSignal(_ detail: DumpDetail = .list) {
    dumpsStacks.store(detail == .stacks, ordering: .relaxed)
    if dumpsOnSignal.exchange(true, ordering: .relaxed) { return }
    let refusal = SignalHub.add(SIGUSR2) {
      if wanted.wrappingAdd(1, ordering: .acquiringAndReleasing).oldValue == 0,
        DetachedThread.start("co-dump", writeWanted) != 0
      {
        wanted.store(0, ordering: .relaxed)
      }
      return true
    }
    if let refusal { misuse("CoroutineRuntime.dumpOnSignal: \(refusal.sentence)") }
  }

  @Sendable private static func writeWanted() {
    var noticed: UInt
    repeat {
      noticed = wanted.load(ordering: .acquiring)
      writeToStandardError(dump(dumpsStacks.load(ordering: .relaxed) ? .stacks : .list))
    } while !wanted.compareExchange(expected: noticed, desired: 0, ordering: .acquiringAndReleasing).exchanged
  }
}
