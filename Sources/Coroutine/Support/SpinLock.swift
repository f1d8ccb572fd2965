public import CCoroutine
import Glibc
public import Synchronization

/// The lock of the hot paths: a word that is taken by an exchange and released by a store.
///
/// Critical sections are a handful of instructions on lists and words. They contain no foreign code, no switch, no
/// allocation and no system call, which debug builds check (LockCheck.swift); what needs one of these takes a
/// `ThreadLock`. Under contention it spins briefly and then yields the processor, so that a waiter does not spin at
/// full speed while the holder has lost its time slice. Built on `Atomic` because ThreadSanitizer sees that (it does
/// not see `Synchronization.Mutex` on Linux), and because an uncontended pair costs half of a pthread mutex.
@usableFromInline
struct SpinLock: ~Copyable, Sendable {
  @usableFromInline let word = Atomic<UInt8>(0)

  @inlinable init() {}

  @inlinable @inline(__always)
  borrowing func lock() {
    if word.exchange(1, ordering: .acquiring) != 0 { lockContended() }
    LockCheck.spinLockTaken()
  }

  @inlinable @inline(__always)
  borrowing func unlock() {
    LockCheck.spinLockLeft()
    cco_order_retains()
    word.store(0, ordering: .releasing)
  }

  @inlinable @inline(__always)
  borrowing func withLock<Output: ~Copyable>(_ body: () -> Output) -> Output {
    lock()
    defer { unlock() }
    return body()
  }

  /// The number of reads of the word before a thread yields, or before one that waits for a `ThreadLock` sleeps.
  static var spins: Int { 60 }

  /// The pause between two reads by a thread of a forked child, in µs.
  private static var childPause: UInt32 { 10_000 }

  /// More pauses than a live holder needs.
  private static var hopeless: Int { 200 }

  static func refuseOrphaned() -> Never {
    misuse(
      """
      a forked child has used something of Coroutine that a thread of its parent was using at the fork; call exec or \
      _exit in the child, or use generators that were made in it
      """
    )
  }

  @usableFromInline @inline(never)
  borrowing func lockContended() {
    var rounds = 0
    repeat {
      while word.load(ordering: .relaxed) != 0 {
        rounds += 1
        if rounds > Self.spins { Self.giveUpProcessor(rounds - Self.spins) }
      }
    } while word.exchange(1, ordering: .acquiring) != 0
  }

  /// Lets the holder run; `times` is how often the caller has done so for this lock.
  ///
  /// In a forked child the holder may be a thread of the parent, which does not exist here. There the thread sleeps in
  /// place of a yield, which takes no certain time: on a busy machine each may last milliseconds. So a number of pauses
  /// is a time, and a process that is stopped and continued finds one pause over, not all of them.
  private static func giveUpProcessor(_ times: Int) {
    if cco_forked() == CCO_NOT_FORKED {
      sched_yield()
    } else {
      if times > hopeless { refuseOrphaned() }
      usleep(childPause)
    }
  }
}
