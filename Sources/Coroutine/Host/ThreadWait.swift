internal import CCoroutine
import Dispatch
import Glibc

// Waits that block a thread: `Job.blockingWait`, `Promise.blockingWait`, and a simulated world that waits for a real
// thread. There is no other one in the library, and each of them is a call of `ThreadWait.block`.
//
// A thread that blocks may be one of a limited number, whose other threads have to do what it waits for. So it tells
// its owner, which may start another one meanwhile. The kernel does not know the owner: a limited thread is an object
// with three methods, in a thread-specific value. A thread that nobody limits pays for one read of that value, beside
// the system calls of a wait.

/// A thread of a limited number; its owner is a pool (BlockingThread).
///
/// The thread's own value holds the object for as long as the thread runs. If code ends the thread (pthread_exit,
/// pthread_cancel), the C library drops the frames, without any cleanup in Swift frames, and then calls the destructor
/// of that value.
class LimitedThread {
  /// What the thread does; it may not return.
  func run() {}
  /// The thread is about to block; throws if it must not, and then it does not block.
  func willBlock() throws {}
  /// The thread has blocked.
  func hasBlocked() {}
  /// The thread was ended from within, and its frames have gone.
  func wasEnded() {}

  private static let key: pthread_key_t = {
    var key = pthread_key_t()
    let code = pthread_key_create(&key) { thread in
      cco_frames_dropped()
      guard let thread else { return }
      Unmanaged<LimitedThread>.fromOpaque(thread).takeRetainedValue().wasEnded()
    }
    precondition(code == 0, "co_blocking: the process has no thread-specific key left (error \(code))")
    return key
  }()

  /// The object of the calling thread; nil if nobody limits it.
  ///
  /// Unmanaged, because a wait may be the end of the thread, which releases no reference in a frame.
  fileprivate static var current: Unmanaged<LimitedThread>? {
    pthread_getspecific(key).map { Unmanaged<LimitedThread>.fromOpaque($0) }
  }

  /// Calls `run` on the calling thread, whose object is `argument`, with one reference that this call takes over.
  static func run(_ argument: UnsafeMutableRawPointer) {
    // The key has the reference: dropped frames release nothing.
    pthread_setspecific(key, argument)
    let me = Unmanaged<LimitedThread>.fromOpaque(argument)
    me._withUnsafeGuaranteedRef { $0.run() }
    pthread_setspecific(key, nil)
    me.release()
  }
}

enum ThreadWait {
  /// Calls `wait`, which blocks the calling thread.
  ///
  /// Throws, and does not call it, if the thread is one of a pool that has as many blocked threads as it may have.
  static func block(_ wait: () -> Void) throws {
    guard let thread = LimitedThread.current else { return wait() }
    try thread._withUnsafeGuaranteedRef { try $0.willBlock() }
    wait()
    thread._withUnsafeGuaranteedRef { $0.hasBlocked() }
  }
}

extension UnsafeMutablePointer where Pointee == Completion {
  /// Blocks the calling thread until the completion is settled; throws as `ThreadWait.block` does.
  ///
  /// Calls `start` first. A refused wait has started nothing, and leaves no callback behind.
  func blockThread(_ start: () -> Void = {}) throws {
    let settled = DispatchSemaphore(value: 0)
    try ThreadWait.block {
      start()
      if add(ClosureCallback { settled.signal() }) { settled.wait() }
    }
  }
}
