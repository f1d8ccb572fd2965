import Coroutine
import Testing

/// Coroutines of one serial queue that wait in a row, for a test of who is served when.
///
/// Made inside `onSerialQueue`: there a launch followed by a yield has brought the new coroutine to its first wait.
struct Queueing {
  /// What happened, in order.
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

  /// Lets everyone run who can, until nobody can.
  func settle() throws {
    for _ in 0..<200 { try co_yield() }
  }
}

/// The sentence with which a process ended, checked where the death was expected.
extension ExitTest.Result {
  func said(_ sentence: String) -> Bool { String(decoding: standardErrorContent, as: UTF8.self).contains(sentence) }
}
