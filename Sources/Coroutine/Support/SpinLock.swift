public import CCoroutineRuntime
import Glibc
public import Synchronization

/// The lock of the hot paths: a word that is taken by an exchange and released by a store.
///
/// Critical sections are a handful of instructions on lists and words. They contain no foreign code, no switch, no
/// allocation and no system call, which debug builds check (below); what needs one of these takes a
/// `ThreadLock`. Under contention it spins briefly and then yields the processor, so that a waiter does not spin at
/// full speed while the holder has lost its time slice. Built on `Atomic` because ThreadSanitizer sees that (it does
/// not see `Synchronization.Mutex` on Linux), and because an uncontended pair costs half of a pthread mutex. Yields do
/// not help a holder that has a lower real-time priority (SCHED_FIFO) than the waiter, so after some of them a waiter
/// sleeps.
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
      ShortWait.pause(times)
    } else {
      if times > hopeless { refuseOrphaned() }
      usleep(childPause)
    }
  }
}

/// A wait for another thread that will be done soon.
struct ShortWait {
  private var times = 0

  /// Lets the other thread run.
  mutating func pause() {
    times &+= 1
    Self.pause(times)
  }

  /// The same for the caller's pause number `times`: yields first, then sleeps.
  fileprivate static func pause(_ times: Int) {
    if times <= yields { sched_yield() } else { usleep(sleep) }
  }

  private static var yields: Int { 64 }
  /// In µs.
  private static var sleep: UInt32 { 50 }
}

// MARK: - The debug check of all locks

// A check of debug builds: no thread holds a spin lock over a switch, an allocation or a system call, and none holds a
// ThreadLock over a switch. Each thread counts the locks that it holds, in its words (CCoroutineRuntime.h). Release
// builds neither count nor check.
//
//   a switch        Carrier.switchOut and every other place of the Swift layer that switches stacks
//   a system call   each function of CLinux, each ThreadLock, each submission to Dispatch
//   an allocation   malloc and its relatives, in the test program, which puts its own functions in front of the C
//                   library's (Tests/CTestSupport/Allocations.c)
//
// The locks of programs, ThreadMutex, are counted beside them. A wait is refused while the flow holds one, and so is a
// yield of a generator's body that has taken one. A wait is refused as it begins, whether it would suspend or not: each
// 256th wait that is satisfied at once yields all the same (Carrier.swift). What a flow holds is not held by another
// flow that runs on the same thread meanwhile:
//
//   a coroutine's part        counts from zero; the driver's count is put aside while it runs (`putAside`)
//   a step of a generator     keeps the count, because a wait of the body would park the consumer as well; what the
//                             consumer holds is not the body's at its yields (`beginStep`)
//
// The system calls that a thread makes with a spin lock are sched_yield and a short sleep: a select takes several
// locks, and may wait for one while it holds another (SpinLock.lockContended).

@usableFromInline
enum LockCheck {
  /// An operation that no spin lock may cover.
  @usableFromInline
  enum Operation { case stackSwitch, threadLock, dispatch }

  @inlinable @inline(__always)
  static func spinLockTaken() {
    #if DEBUG
    cco_layer().pointee.spin_locks &+= 1
    #endif
  }

  @inlinable @inline(__always)
  static func spinLockLeft() {
    #if DEBUG
    cco_layer().pointee.spin_locks &-= 1
    #endif
  }

  @inline(__always)
  static func threadLockTaken() {
    #if DEBUG
    cco_layer().pointee.thread_locks &+= 1
    #endif
  }

  @inline(__always)
  static func threadLockLeft() {
    #if DEBUG
    cco_layer().pointee.thread_locks &-= 1
    #endif
  }

  /// Ends the process if the calling thread holds a spin lock.
  @inlinable @inline(__always)
  static func noSpinLock(_ operation: Operation) {
    #if DEBUG
    if cco_layer().pointee.spin_locks != 0 { refuse(operation) }
    #endif
  }

  /// Ends the process if the calling thread holds any lock.
  @inlinable @inline(__always)
  static func noLock(_ operation: Operation) {
    #if DEBUG
    if cco_layer().pointee.spin_locks != 0 || cco_layer().pointee.thread_locks != 0 { refuse(operation) }
    #endif
  }

  @inline(__always)
  static func threadMutexTaken() {
    #if DEBUG
    cco_layer().pointee.thread_mutexes &+= 1
    #else
    if cco_has_worlds() { cco_layer().pointee.thread_mutexes &+= 1 }
    #endif
  }

  @inline(__always)
  static func threadMutexLeft() {
    #if DEBUG
    cco_layer().pointee.thread_mutexes &-= 1
    #else
    // One that was taken before there were worlds was not counted.
    if cco_has_worlds(), cco_layer().pointee.thread_mutexes != 0 { cco_layer().pointee.thread_mutexes &-= 1 }
    #endif
  }

  /// Whether the calling flow holds a ThreadMutex; an optimised build counts them only in processes with worlds.
  @inline(__always)
  static var holdsThreadMutex: Bool { cco_layer().pointee.thread_mutexes != 0 }

  /// Ends the process if the flow that is about to wait holds a ThreadMutex.
  @inlinable @inline(__always)
  static func mayWait() {
    #if DEBUG
    if cco_layer().pointee.thread_mutexes != 0 { refuseWait() }
    #endif
  }

  /// Ends the process if the generator's body that is about to yield has taken a ThreadMutex.
  @inlinable @inline(__always)
  static func mayYield() {
    #if DEBUG
    if cco_layer().pointee.thread_mutexes != cco_layer().pointee.thread_mutexes_below { refuseYield() }
    #endif
  }

  /// The counts of a flow that another one interrupts.
  @usableFromInline
  struct Held {
    @usableFromInline let (mutexes, below): (UInt32, UInt32)
    @inlinable
    init(mutexes: UInt32, below: UInt32) { (self.mutexes, self.below) = (mutexes, below) }
  }

  /// Lets a coroutine's part begin with no ThreadMutex.
  @inline(__always)
  static func putAside() -> Held {
    #if DEBUG
    let held = Held(mutexes: cco_layer().pointee.thread_mutexes, below: cco_layer().pointee.thread_mutexes_below)
    cco_layer().pointee.thread_mutexes = 0
    cco_layer().pointee.thread_mutexes_below = 0
    return held
    #else
    return Held(mutexes: 0, below: 0)
    #endif
  }

  /// Ends a coroutine's part, on the thread that it began on.
  @inline(__always)
  static func takeBack(_ held: Held) {
    #if DEBUG
    cco_layer().pointee.thread_mutexes = held.mutexes
    cco_layer().pointee.thread_mutexes_below = held.below
    #endif
  }

  /// Begins a generator's step.
  @inlinable @inline(__always)
  static func beginStep() -> UInt32 {
    #if DEBUG
    let below = cco_layer().pointee.thread_mutexes_below
    cco_layer().pointee.thread_mutexes_below = cco_layer().pointee.thread_mutexes
    return below
    #else
    return 0
    #endif
  }

  /// Ends a generator's step, perhaps on another thread than it began on: then the body has waited, and nothing is
  /// held.
  @inlinable @inline(__always)
  static func endStep(_ below: UInt32) {
    #if DEBUG
    cco_layer().pointee.thread_mutexes_below = below
    #endif
  }

  #if DEBUG
  @usableFromInline @inline(never)
  static func refuseWait() { cco_refuse_locked("ThreadMutex", "a wait") }

  @usableFromInline @inline(never)
  static func refuseYield() { cco_refuse_locked("ThreadMutex", "a yield of a generator's body") }

  @usableFromInline @inline(never)
  static func refuse(_ operation: Operation) {
    // A sentence for C may be copied first.
    cco_layer().pointee.lock_exemptions &+= 1
    if cco_layer().pointee.spin_locks == 0 { cco_refuse_locked("ThreadLock", "a switch") }
    switch operation {
    case .stackSwitch: cco_refuse_locked("spin lock", "a switch")
    case .threadLock: cco_refuse_locked("spin lock", "a ThreadLock, which may sleep")
    case .dispatch: cco_refuse_locked("spin lock", "a call to Dispatch")
    }
  }
  #endif
}
