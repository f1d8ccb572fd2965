import Glibc

/// A value behind a pthread mutex.
///
/// Not `Synchronization.Mutex`: ThreadSanitizer does not see that one on Linux and would call correct tests racy.
final class Locked<Value>: @unchecked Sendable {
  // Sound because `value` is accessed only between lock and unlock of `mutex`, which never moves in memory.
  private var value: Value
  private let mutex: UnsafeMutablePointer<pthread_mutex_t>

  init(_ value: sending Value) {
    self.value = value
    mutex = .allocate(capacity: 1)
    mutex.initialize(to: pthread_mutex_t())
    pthread_mutex_init(mutex, nil)
  }

  deinit {
    pthread_mutex_destroy(mutex)
    mutex.deallocate()
  }

  /// Runs `body` under the lock.
  ///
  /// It must not suspend: the lock belongs to a thread, not to a coroutine.
  func withLock<Output>(_ body: (inout Value) throws -> sending Output) rethrows -> sending Output {
    pthread_mutex_lock(mutex)
    defer { pthread_mutex_unlock(mutex) }
    return try body(&value)
  }
}

extension Locked where Value: Sendable {
  var current: Value {
    get { withLock { $0 } }
    set { withLock { $0 = newValue } }
  }
}
