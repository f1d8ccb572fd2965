import Coroutine
import Testing

/// Coroutines of one serial queue that wait in order, for tests of the order of service.
///
/// Made inside `onSerialQueue`: there a launch followed by a yield has brought the new coroutine to its first wait.
struct Queueing {
  /// The events, in order.
  let trace = Trace()

  /// Launches a coroutine that waits by `wait` and then writes its label, or `label: error`, into the trace.
  @discardableResult
  func enqueue(_ label: String, _ wait: @escaping @Sendable () throws -> Void) throws -> Job<Void> {
    let trace = trace
    let job = co_launch(name: label) {
      do {
        try wait()
        trace(label)
      } catch {
        trace("\(label): \(name(of: error))")
      }
    }
    try co_yield()
    return job
  }

  /// Lets all ready coroutines run, until none is ready.
  func settle() throws {
    for _ in 0..<200 { try co_yield() }
  }
}

/// Checks the message with which a process has ended.
extension ExitTest.Result {
  func said(_ sentence: String) -> Bool { String(decoding: standardErrorContent, as: UTF8.self).contains(sentence) }
}
