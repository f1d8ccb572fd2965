#if Demo
import CoroutineNet

/// The lines that a client sends, each within the limit.
struct ChatLines: ~Copyable {
  enum Line: Equatable {
    case text(String)
    /// One that was longer; no byte of it is kept.
    case tooLong
  }

  private let longest: Int
  private var reader: BufferedReader
  /// Whether the beginning of the current line was dropped.
  private var isDropping = false

  init(_ connection: Connection, longest: Int) {
    self.longest = longest
    // Most lines are short, and a server has many clients.
    reader = BufferedReader(connection, capacity: 1_024)
  }

  /// Suspends until a line has come; nil at the end.
  ///
  /// Throws the errors of the connection, and the cancellation error. After a deadline the next call continues.
  mutating func next() throws -> Line? {
    while true {
      do {
        guard let text = try reader.readLine(max: longest) else { return nil }
        defer { isDropping = false }
        return isDropping ? .tooLong : .text(text)
      } catch let error as NetError where error == .tooLong {
        // So many bytes are there at least, and no end of the line is among them.
        _ = try reader.read(exactly: longest + 1)
        isDropping = true
      } catch let error as NetError where error == .endOfStream {
        // A line without an end was not finished.
        return nil
      }
    }
  }
}
#endif
