#if Demo
import Coroutine
import CoroutineNet

/// One client's session: a coroutine reads what the client says, and another one writes what the client is told.
///
///     client ── lines ──► readLines ── events ──► hub ── outbox ──► writeLines ── lines ──► client
///
/// A session ends in one way: the hub closes the outbox with the reason. `writeLines` then writes what is left and the
/// last line, and `readLines` is cancelled, wherever it waits. A coroutine that finds another reason tells the hub:
/// `readLines` at the end of the stream or after a long silence, `run` if the client takes no bytes.
struct ChatSession {
  /// The stack of each of the two coroutines.
  ///
  /// Small stacks share page tables, so an idle client costs 2 KB less than with the standard size. Sessions have used
  /// up to 10 KiB, and another coroutine 24 KiB, where the Swift runtime did something for the first time. So 16 KiB
  /// would be too small.
  static let stack = StackSize.bytes(64 * 1_024)

  let id: Int
  let connection: Connection
  let hub: ActorRef<ChatEvent>
  let options: ChatOptions

  /// Suspends until the session has ended.
  func run() throws {
    let outbox = Outbox(capacity: options.backlog)
    try hub.tell(.entered(id, outbox))
    // At every end, a cancellation as well: no client that is gone stays in a room. A second reason does not count.
    defer { try? co_shield { try hub.tell(.ended(id, .gone)) } }
    do {
      try co_scope { scope in
        scope.launch(name: "reader", stack: Self.stack) { try readLines() }
        try writeLines(outbox)
        scope.cancel()
      }
      // Closed with bytes that nobody has read, the connection would be broken, and the last line might be lost.
      try connection.shutdownWrite()
      try co_timeout(options.linger) { while try !connection.read(upTo: 1_024).isEmpty {} }
    } catch is NetError, is TimeoutError {
      // The client is gone, or takes nothing: there is nobody to tell.
    }
  }

  // MARK: From the client

  private func readLines() throws {
    let ending = try readToTheEnd()
    try hub.tell(.ended(id, ending))
  }

  private func readToTheEnd() throws -> ChatEnding {
    var lines = ChatLines(connection, longest: options.longestLine)
    do {
      while let line = try co_timeout(.seconds(options.idle), { try lines.next() }) {
        switch line {
        // Suspends while the hub is behind: so a client that says too much is not read from.
        case .text(let text): try hub.tell(.line(id, text))
        case .tooLong: try hub.tell(.longLine(id))
        }
      }
      return .gone
    } catch is TimeoutError {
      return .idle(seconds: options.idle)
    } catch is NetError {
      return .gone
    }
  }

  // MARK: To the client

  private func writeLines(_ outbox: Outbox) throws {
    do {
      // All that waits at once: a system call for many lines.
      while true { try write(try outbox.receiveAll()) }
    } catch let ending as ChatEnding {
      if let line = ending.lastLine { try write([Array("\(line)\n".utf8)]) }
    }
  }

  private func write(_ lines: [[UInt8]]) throws {
    try co_timeout(options.patience) { try connection.write(lines) }
  }
}
#endif
