#if Demo
import Coroutine

/// The lines that wait for one client; closed with the `ChatEnding` when its session ends.
///
/// A bounded channel has memory for all values from its creation on: 2 KB for 256 lines, for each silent client. So the
/// channel is unbounded, and the sender counts.
///
/// Invariant: at most `capacity` lines wait. One coroutine sends, the hub, so the count cannot grow between its look
/// and its send.
struct Outbox: Sendable {
  private let lines = Channel<[UInt8]>(.unbounded)
  private let capacity: Int

  /// Creates an open, empty outbox.
  init(capacity: Int) { self.capacity = capacity }

  /// Returns false if there was no room for the line.
  ///
  /// Never suspends.
  func trySend(_ line: [UInt8]) -> Bool {
    guard lines.count < capacity else { return false }
    _ = lines.trySend(line)
    return true
  }

  /// Closes the outbox: what waits is received before the ending.
  func close(_ ending: ChatEnding) { lines.close(ending) }

  /// Suspends until a line waits.
  ///
  /// Throws the ending after the last line, and the cancellation error.
  func receive() throws -> [UInt8]? { try lines.receive() }

  /// Receives all that waits, as `receive` does.
  func receiveAll() throws -> [[UInt8]] { try lines.receiveAll() }
}
#endif
