import Coroutine
import Glibc

/// A value that threads share, under a lock that is no step of a world.
///
/// Not a `Synchronization.Mutex`: the compiler takes the thread's number for it once for a function, and some of these
/// functions wait, or run coroutines, between two sections (docs/hazards.md, 18). And ThreadSanitizer sees this one.
final class Guarded<Value>: @unchecked Sendable {
  // Sound because `value` is accessed under `lock`, and a section returns only what is Sendable, or what it has taken
  // out.
  private let lock = ThreadLock()
  @exclusivity(unchecked) private var value: Value

  init(_ value: sending Value) { self.value = value }

  /// Calls `body` with the value; `body` must not wait.
  func withLock<Output, Failure>(_ body: (inout Value) throws(Failure) -> Output) throws(Failure) -> Output {
    try lock.withLock { () throws(Failure) -> Output in try body(&value) }
  }
}

/// A lock that a thread holds over the runs of other code; not a spin lock, because a world may last for seconds.
final class AsyncLock: @unchecked Sendable {
  // Sound because the mutex is used by its functions alone.
  private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
  init() { pthread_mutex_init(mutex, nil) }
  func lock() { pthread_mutex_lock(mutex) }
  func unlock() { pthread_mutex_unlock(mutex) }
}
