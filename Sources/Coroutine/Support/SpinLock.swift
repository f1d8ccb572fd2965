internal import CCoroutine
import Glibc
public import Synchronization

/// The one lock of the package: a word that is taken by an exchange and given back by a store.
///
/// Critical sections are a handful of instructions that touch lists and words; foreign code never runs inside and no
/// switch happens inside. Under contention it spins briefly and then yields the processor, so a holder that lost its time
/// slice is not waited for at full speed. Built on `Atomic` because ThreadSanitizer sees that (it does not see
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
    word.store(0, ordering: .releasing)
  }

  @inlinable @inline(__always)
  borrowing func withLock<Output: ~Copyable>(_ body: () -> Output) -> Output {
    lock()
    defer { unlock() }
    return body()
  }

  /// So many rounds no holder in a forked child takes, whose coroutines do not run.
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
