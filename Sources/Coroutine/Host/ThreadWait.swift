internal import CLinux
import Dispatch
import Glibc
import Synchronization

/// A thread of a limited pool (Bridge/Blocking.swift), which lets another one in while it waits.
class LimitedThread {
  private static let key: pthread_key_t = {
    var key = pthread_key_t()
    let code = pthread_key_create(&key, nil)
    if code != 0 { misuse("co_blocking: the process has no thread-specific key left (error \(code))") }
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
  /// Calls `start`, and blocks the calling thread until the completion is settled; `what` names it for a report.
  func blockThread(for what: () -> String, _ start: () -> Void = {}) {
    if clinux_is_main_thread() || clinux_is_in_main_queue() {
      let wait = MainQueueWait()
      start()
      if add(ClosureCallback { wait.end() }) { wait.block(for: what) }
      return
    }
    let settled = DispatchSemaphore(value: 0)
    LimitedThread.whileWaiting {
      start()
      if add(ClosureCallback { settled.signal() }) { settled.wait() }
    }
  }
}

// MARK: - The main queue

/// A wait that blocks the main thread, or a thread that runs a block of the main queue.
///
/// What is waited for may need the main queue, also by way of the main actor. Before `dispatchMain()` only the main
/// thread runs that queue, so it does while it waits. It cannot in a block of the queue, and no other thread can after
/// `dispatchMain()`: then a line says so after a second, once in a process. A line and no error, because nothing tells
/// whether the queue is needed.
private final class MainQueueWait: Sendable {
  private let settled = DispatchSemaphore(value: 0)
  /// Readable when the wait is over; -1 if the queue cannot be served here.
  private let wake: Int32 = clinux_can_serve_main_queue() ? clinux_eventfd() : -1
  private static let hasSaid = Atomic<Bool>(false)

  deinit { if wake >= 0 { close(wake) } }

  func end() {
    settled.signal()
    if wake >= 0 { clinux_eventfd_signal(wake) }
  }

  func block(for what: () -> String) {
    guard wake >= 0 else {
      if settled.wait(timeout: .now() + 1) == .success { return }
      if clinux_is_in_main_queue() { say(what()) }
      return settled.wait()
    }
    // Whatever ends the service of the queue, the wait ends by `settled` alone: a poll may fail, as it does where the
    // process has lowered its limit of descriptors below those that it has.
    defer { settled.wait() }
    if clinux_serve_main_queue(wake, 1_000_000_000) { return }
    let isServed = Shared(Atomic<Bool>(false))
    DispatchQueue.main.async { isServed.touched.store(true, ordering: .relaxed) }
    clinux_run_main_queue()
    if !isServed.touched.load(ordering: .relaxed) { say(what()) }
    _ = clinux_serve_main_queue(wake, -1)
  }

  private func say(_ what: String) {
    if Self.hasSaid.exchange(true, ordering: .relaxed) { return }
    writeToStandardError(
      "Coroutine: blockingWait() has kept the main queue for a second, for \(what): if that needs the main queue or the "
        + "main actor, it never ends. Call it outside of blocks of the main queue, or await the value\n"
    )
  }
}
