import Coroutine
import Dispatch

/// A queue whose thread other code blocks, until it is released.
final class BlockedQueue: Sendable {
  let queue: DispatchQueue
  private let semaphore = DispatchSemaphore(value: 0)

  /// Returns when the queue is blocked.
  init(_ queue: DispatchQueue = taggedQueue("blocked")) async throws {
    self.queue = queue
    let isBlocked = Gate()
    queue.async { [semaphore] in
      isBlocked.open()
      semaphore.wait()
    }
    try await isBlocked.value
  }

  func release() { semaphore.signal() }

  /// Releases the queue, and returns when it has come to all that was queued before.
  func releaseAndSettle() async throws {
    release()
    for _ in 0..<3 { try await onBlock(of: queue) {} }
  }

  deinit { release() }
}
