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

  /// The number of looks at the word before a thread yields, or before one that waits for a `ThreadLock` sleeps.
  static var spins: Int { 60 }

  /// More rounds than a live holder needs; in a forked child the holder does not run.
  private static var hopeless: Int { 1_000_000 }

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
        if rounds > Self.spins { sched_yield() }
        if rounds > Self.hopeless, cco_facts.forked != 0 { Self.refuseOrphaned() }
      }
    } while word.exchange(1, ordering: .acquiring) != 0
  }
}
