#if DEBUG
public import CCoroutine
#else
internal import CCoroutine
#endif

// A check of debug builds: no thread holds a spin lock over a switch, an allocation or a system call, and none holds a
// ThreadLock over a switch. Each thread counts the locks that it holds, in its words (CCoroutine.h). Release builds
// neither count nor check.
//
//   a switch        Carrier.switchOut and every other place of the Swift layer that switches stacks
//   a system call   each function of CLinux, each ThreadLock, each submission to Dispatch
//   an allocation   malloc and its relatives, in the test program, which puts its own functions in front of the C
//                   library's (Tests/CTestSupport/Allocations.c)
//
// The one system call that a thread makes with a spin lock is sched_yield: a select takes several locks, and may wait
// for one while it holds another (SpinLock.lockContended).

@usableFromInline
enum LockCheck {
  /// An operation that no spin lock may cover.
  @usableFromInline
  enum Operation { case stackSwitch, threadLock, dispatch }

  @inlinable @inline(__always)
  static func spinLockTaken() {
    #if DEBUG
    cco_thread().pointee.spin_locks &+= 1
    #endif
  }

  @inlinable @inline(__always)
  static func spinLockLeft() {
    #if DEBUG
    cco_thread().pointee.spin_locks &-= 1
    #endif
  }

  @inline(__always)
  static func threadLockTaken() {
    #if DEBUG
    cco_thread().pointee.thread_locks &+= 1
    #endif
  }

  @inline(__always)
  static func threadLockLeft() {
    #if DEBUG
    cco_thread().pointee.thread_locks &-= 1
    #endif
  }

  /// Ends the process if the calling thread holds a spin lock.
  @inlinable @inline(__always)
  static func noSpinLock(_ operation: Operation) {
    #if DEBUG
    if cco_thread().pointee.spin_locks != 0 { refuse(operation) }
    #endif
  }

  /// Ends the process if the calling thread holds any lock.
  @inlinable @inline(__always)
  static func noLock(_ operation: Operation) {
    #if DEBUG
    if cco_thread().pointee.spin_locks != 0 || cco_thread().pointee.thread_locks != 0 { refuse(operation) }
    #endif
  }

  /// Lets the thread allocate although it holds a spin lock, until `forbidAllocations`.
  ///
  /// For the lists of a walk through a graph of promises, and for nothing else: the walk goes from lock to lock, and is
  /// never without one (Promise+Cancel.swift). Two functions, because the unoptimised code of one that calls a closure
  /// would allocate to return its result.
  @inline(__always)
  static func allowAllocations() {
    #if DEBUG
    cco_thread().pointee.lock_exemptions &+= 1
    #endif
  }

  @inline(__always)
  static func forbidAllocations() {
    #if DEBUG
    cco_thread().pointee.lock_exemptions &-= 1
    #endif
  }

  #if DEBUG
  @usableFromInline @inline(never)
  static func refuse(_ operation: Operation) {
    // A sentence for C may be copied first.
    allowAllocations()
    if cco_thread().pointee.spin_locks == 0 { cco_refuse_locked("ThreadLock", "a switch") }
    switch operation {
    case .stackSwitch: cco_refuse_locked("spin lock", "a switch")
    case .threadLock: cco_refuse_locked("spin lock", "a ThreadLock, which may sleep")
    case .dispatch: cco_refuse_locked("spin lock", "a call to Dispatch")
    }
  }
  #endif
}
