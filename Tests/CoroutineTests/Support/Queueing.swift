import Coroutine
import CoroutineTesting
import Testing

/// Coroutines of one serial queue that wait in order, for tests of the order of service.
///
/// Made inside `onSerialQueue`, where a launch followed by a yield has brought the new coroutine to its first wait, or
/// in a world, which settles.
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
    try letRun()
    return job
  }

  /// Lets all ready coroutines run, until none is ready.
  func settle() throws {
    if World.current != nil { return try settleWorld() }
    for _ in 0..<200 { try co_yield() }
  }
}

/// Lets what was launched before run up to its first wait: in a world, and on a serial queue, which the caller shares.
func letRun() throws {
  if World.current != nil { try settleWorld() } else { try co_yield() }
}

/// Checks the message with which a process has ended.
extension ExitTest.Result {
  func said(_ sentence: String) -> Bool { String(decoding: standardErrorContent, as: UTF8.self).contains(sentence) }
}
