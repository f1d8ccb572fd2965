#if Demo
import Coroutine
import CoroutineNet

/// The lines that a server sends to one client of the load program.
struct LoadLines: ~Copyable {
  private let timeout: Duration
  private var reader: BufferedReader
  /// The last line, if it is the server's own: it may say why the connection ends.
  private var notice: String?

  init(_ connection: Connection, timeout: Duration) {
    self.timeout = timeout
    reader = BufferedReader(connection, capacity: 4_096)
  }

  /// Suspends until a line has come; nil at the end of the stream.
  ///
  /// Throws `TimeoutError` after a silence, the errors of the connection, and the cancellation error.
  mutating func next() throws -> String? {
    guard let line = try co_timeout(timeout, { try reader.readLine() }) else { return nil }
    notice = line.hasPrefix("* ") || line.hasPrefix("! ") ? line : nil
    return line
  }

  /// Suspends until a line has come; the end of the stream is a failure.
  mutating func nextBeforeEnd() throws -> String {
    guard let line = try next() else { throw lost("the server has closed it") }
    return line
  }

  /// The failure of a connection that ended too early, with what the server has said last.
  func lost(_ reason: String) -> LoadFailure {
    .lostConnection(reason + (notice.map { ", after the line: \($0)" } ?? ""))
  }
}
#endif
