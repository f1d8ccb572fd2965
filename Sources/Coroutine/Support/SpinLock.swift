public import CCoroutine
import Glibc
public import Synchronization

/// The only lock of the package: a word that is taken by an exchange and released by a store.
///
/// Critical sections are a handful of instructions on lists and words; they contain no foreign code and no switch.
/// Under contention it spins briefly and then yields the processor, so that a waiter does not spin at full speed while
/// the holder has lost its time slice. Built on `Atomic` because ThreadSanitizer sees that (it does not see
/// `Synchronization.Mutex` on Linux), and because an uncontended pair costs half of a pthread mutex.
@usableFromInline
struct SpinLock: ~Copyable, Sendable {
  @usableFromInline let word = Atomic<UInt8>(0)

  @inlinable init() {}

  @inlinable @inline(__always)
  borrowing func lock() {
    if word.exchange(1, ordering: .acquiring) != 0 { lockContended() }
  }

  @inlinable @inline(__always)
  borrowing func unlock() {
    cco_order_retains()
    word.store(0, ordering: .releasing)
  }

  @inlinable @inline(__always)
  borrowing func withLock<Output: ~Copyable>(_ body: () -> Output) -> Output {
    lock()
    defer { unlock() }
    return body()
  }

  /// More rounds than a live holder needs; in a forked child the holder does not run.
  private static var hopeless: Int { 1_000_000 }

  private static func refuseOrphaned() -> Never {
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
        if rounds > 60 { sched_yield() }
        if rounds > Self.hopeless, cco_facts.forked != 0 { Self.refuseOrphaned() }
      }
    } while word.exchange(1, ordering: .acquiring) != 0
  }
}
