import Dispatch
import Glibc

/// A thread of a limited pool (Bridge/Blocking.swift), which lets another one in while it waits.
class LimitedThread {
  private static let key: pthread_key_t = {
    var key = pthread_key_t()
    let code = pthread_key_create(&key, nil)
    precondition(code == 0, "co_blocking: the process has no thread-specific key left (error \(code))")
    return key
  }()

  /// Makes this the object of the calling thread, which holds it until `leave`.
  final func enter() { pthread_setspecific(Self.key, Unmanaged.passUnretained(self).toOpaque()) }

  /// Ends that: destructors of the thread's own variables may run, and wait, when the object is gone.
  final func leave() { pthread_setspecific(Self.key, nil) }

  /// Calls `wait`, which blocks the calling thread.
  ///
  /// All waits of the library that block a thread are calls of this function: `Job.blockingWait`,
  /// `Promise.blockingWait`, and a simulated world that waits for a real thread. A thread that is of no pool pays for
  /// one read of a thread-specific value.
  static func whileWaiting(_ wait: () -> Void) {
    let current = pthread_getspecific(key).map { Unmanaged<LimitedThread>.fromOpaque($0).takeUnretainedValue() }
    guard let current else { return wait() }
    current.beginWait()
    wait()
    current.endWait()
  }

  func beginWait() {}
  func endWait() {}
}

extension UnsafeMutablePointer where Pointee == Completion {
  /// Calls `start`, and blocks the calling thread until the completion is settled.
  func blockThread(_ start: () -> Void = {}) {
    let settled = DispatchSemaphore(value: 0)
    LimitedThread.whileWaiting {
      start()
      if add(ClosureCallback { settled.signal() }) { settled.wait() }
    }
  }
}
