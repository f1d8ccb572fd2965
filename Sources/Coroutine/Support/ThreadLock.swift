internal import CCoroutine
internal import CCoroutineRuntime
internal import CLinux
import Synchronization

// The lock for what a spin lock must not cover: system calls, allocations, loops without a bound, foreign code.
//
//   FREE --lock--> TAKEN --unlock--> FREE                 no thread waits: no system call
//   TAKEN --lock by another thread--> CONTENDED --unlock--> FREE, and one sleeping thread is woken
//
// Invariants
//  1. The holder is the thread whose compare-and-swap or exchange found FREE. Only the holder stores FREE.
//  2. A thread sleeps only after it has stored CONTENDED, and only while the word still is CONTENDED: the kernel
//     compares the word when the thread goes to sleep. So the unlock after that store finds CONTENDED, and wakes.
//  3. A thread that has slept takes the lock as CONTENDED, because others may sleep as well. The cost is at most one
//     wake-up that finds no thread.
//
// A coroutine must not be switched out while its thread holds the lock: the next coroutine on the thread could wait for
// it for ever. A thread that holds a spin lock must not take it, because it may sleep. Debug builds check both
// (SpinLock.swift).
//
// Built on `Atomic`, because ThreadSanitizer does not see `Synchronization.Mutex` on Linux. An uncontended pair costs
// one atomic instruction more than a spin lock's. After an unlock, the memory of the lock may be freed before the
// wake-up: the kernel then wakes no thread, or one that sleeps on a new lock at this address and checks it again.
//
// In a forked child the holder may be a thread of the parent, which does not exist here. Until its first use of the
// runtime (Fork.c), a thread of a child waits for a limited time, and then ends the process with the same message as a
// spin lock.
package struct ThreadLock: ~Copyable, Sendable {
  private let word = Atomic<UInt32>(0)

  private static var free: UInt32 { 0 }
  private static var taken: UInt32 { 1 }
  private static var contended: UInt32 { 2 }

  /// The time for which a thread of a forked child sleeps at most, in ns.
  private static var childTimeout: UInt64 { 1_000_000_000 }

  package init() {}

  borrowing func lock() {
    acquire()
    LockCheck.threadLockTaken()
  }

  borrowing func unlock() {
    LockCheck.threadLockLeft()
    release()
  }

  /// Locks if no thread holds the lock; returns whether it has.
  borrowing func lockIfFree() -> Bool {
    guard acquireIfFree() else { return false }
    LockCheck.threadLockTaken()
    return true
  }

  /// Locks, without a count of debug builds; for ThreadMutex, which is counted by itself.
  borrowing func acquire() {
    LockCheck.noSpinLock(.threadLock)
    if !takeFree() { lockContended() }
  }

  /// Locks if no thread holds the lock, without a count.
  borrowing func acquireIfFree() -> Bool {
    LockCheck.noSpinLock(.threadLock)
    return takeFree()
  }

  /// Unlocks what `acquire` or `acquireIfFree` has locked.
  borrowing func release() {
    if word.exchange(Self.free, ordering: .releasing) == Self.contended {
      withUnsafePointer(to: word) { clinux_futex_wake(UnsafeRawPointer($0).assumingMemoryBound(to: UInt32.self)) }
    }
  }

  package borrowing func withLock<Output: ~Copyable, Failure>(
    _ body: () throws(Failure) -> Output
  ) throws(Failure) -> Output {
    lock()
    defer { unlock() }
    return try body()
  }

  /// Returns when the lock is free, or has been free since the call.
  ///
  /// What a holder did before it unlocked happens before the return. One load, unless the lock is taken.
  @inline(__always)
  borrowing func waitWhileTaken() {
    LockCheck.noSpinLock(.threadLock)
    if word.load(ordering: .acquiring) != Self.free { lockOnce() }
  }

  @inline(never)
  private borrowing func lockOnce() { withLock {} }

  @inline(__always)
  private borrowing func takeFree() -> Bool {
    word.compareExchange(
      expected: Self.free,
      desired: Self.taken,
      successOrdering: .acquiring,
      failureOrdering: .relaxed
    ).exchanged
  }

  @inline(never)
  private borrowing func lockContended() {
    for _ in 0..<SpinLock.spins {
      if word.load(ordering: .relaxed) == Self.free, takeFree() { return }
      cco_relax()
    }
    // Two in a row: a process that is stopped and continued finds one time over, although the holder lives.
    var timesOver = 0
    while word.exchange(Self.contended, ordering: .acquiring) != Self.free {
      let timeout = cco_forked() == CCO_NOT_FORKED ? 0 : Self.childTimeout
      let isInTime = withUnsafePointer(to: word) {
        clinux_futex_wait(UnsafeRawPointer($0).assumingMemoryBound(to: UInt32.self), Self.contended, timeout)
      }
      timesOver = isInTime ? 0 : timesOver + 1
      if timesOver == 2 { SpinLock.refuseOrphaned() }
    }
  }
}
