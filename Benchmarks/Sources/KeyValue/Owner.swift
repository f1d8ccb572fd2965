import Coroutine

/// Gives the code of a connection the part of the data that has a key, while nothing else uses that part.
protocol Owner: Sendable {
  /// Calls `body` with the part that has the key; `body` must not wait.
  func use(_ key: Bytes, _ body: (Store) -> Void)
  /// Calls `body` with each part, one after the other.
  func useAll(_ body: (Store) -> Void)
}

/// Data that belongs to one worker, or to a serial queue: code between two waits is atomic for all other connections.
struct OneThread: Owner {
  private let store = Store()

  func use(_ key: Bytes, _ body: (Store) -> Void) { body(store) }
  func useAll(_ body: (Store) -> Void) { body(store) }
}

/// Data that all workers use, in parts with a lock each.
///
/// Two workers rarely need the same part at once, and a section is shorter than a switch to another thread. A command
/// for several keys is one step for each of them.
struct Parts: Owner {
  private let parts: [ThreadMutex<Store>]

  /// Creates `count` parts, a power of two.
  init(_ count: Int) { parts = (0..<count).map { _ in ThreadMutex(Store()) } }

  func use(_ key: Bytes, _ body: (Store) -> Void) {
    parts[key.sum & (parts.count - 1)].withLock { body($0) }
  }

  func useAll(_ body: (Store) -> Void) {
    for part in parts { part.withLock { body($0) } }
  }
}
