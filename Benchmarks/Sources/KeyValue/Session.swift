import Coroutine
import CoroutineNet

/// One connection: its coroutine reads commands, performs those that have arrived, and writes their replies together.
struct Session<Data: Owner> {
  let connection: Connection
  let owner: Data
  /// Whether a stop ends the connection at once when it is idle.
  let drains: Bool

  func serve() throws {
    var reader = BufferedReader(connection)
    var interpreter = Interpreter(owner)
    while try hasMore(&reader) {
      while let blocking = performAll(&reader, &interpreter) {
        try flush(&interpreter.replies)
        blocking.reply(try blocking.pop(from: owner, connection, &reader), &interpreter.replies)
      }
      try flush(&interpreter.replies)
      if interpreter.isOver { return try connection.closeLingering() }
    }
  }

  private func hasMore(_ reader: inout BufferedReader) throws -> Bool {
    if drains, reader.bufferedCount == 0 { return try reader.waitForMessage() }
    return try reader.fill()
  }

  /// Performs the commands that have arrived, up to one that may have to wait, which is returned.
  private func performAll(_ reader: inout BufferedReader, _ interpreter: inout Interpreter<Data>) -> BlockingPop? {
    let (count, blocking) = reader.withBuffered { interpreter.performAll($0) }
    reader.consume(count)
    return blocking
  }

  /// Writes the replies so far.
  private func flush(_ replies: inout Replies) throws {
    if replies.bytes.isEmpty { return }
    try replies.bytes.withUnsafeBytes { try connection.write($0) }
    replies.removeAll()
  }
}
