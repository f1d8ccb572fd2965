import Dispatch
import Glibc
import Synchronization

/// Runs handlers on a global queue, one after another.
///
/// A handler that is added while another one runs follows it on the same thread.
@usableFromInline
final class OrderedHandlers: @unchecked Sendable {
  // Sound because everything is accessed under the lock.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var waiting = WorkQueue()
  @exclusivity(unchecked) private var isRunning = false
  /// The thread that runs the handlers; nil while none does.
  @exclusivity(unchecked) private var thread: pthread_t?

  init() {}

  /// Whether the calling code is one of these handlers, so that blocking it would block the others.
  var isRunningHere: Bool { lock.withLock { thread.map { pthread_equal($0, pthread_self()) != 0 } ?? false } }

  func deliver(_ message: Inbox.Message) {
    ForkedChild.noteUse()
    lock.lock()
    waiting.append(message)
    let mustStart = !isRunning
    isRunning = true
    lock.unlock()
    if mustStart { DispatchQueue.global().async { self.run() } }
  }

  private func run() {
    lock.withLock { thread = pthread_self() }
    while true {
      lock.lock()
      let next = waiting.popFirst()
      if next == nil { (isRunning, thread) = (false, nil) }
      lock.unlock()
      guard case .work(let item) = next else { return }
      item.run()
    }
  }
}
