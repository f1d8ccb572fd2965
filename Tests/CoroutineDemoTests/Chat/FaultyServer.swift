#if Demo
import Coroutine
import CoroutineNet

/// A chat server for one client, which returns its messages to it with stated faults.
///
/// It drops message 3, sends message 5 twice, and sends message 8 before message 7.
struct FaultyServer: Sendable {
  /// How it ends.
  enum Ending: Sendable {
    case complete
    /// It does not answer /quit.
    case ignoresQuit
    /// After seven messages it sends a line, and closes the connection.
    case sendsAway
  }

  static let reason = "* You are a load program. Good-bye."
  var ending = Ending.complete

  /// Suspends until the client has left.
  func serve(_ connection: Connection) throws {
    var reader = BufferedReader(connection)
    var name = ""
    var held: String?
    func send(_ lines: String...) throws { try connection.write(lines.map { Array("\($0)\n".utf8) }) }
    try send("* Welcome.")
    while let line = try reader.readLine() {
      let words = line.split(separator: " ").map(String.init)
      switch words.first {
      case "/nick": name = words[1]
      case "/join": try send("* \(name) has joined \(words[1]).")
      case "/quit":
        if case .ignoresQuit = ending { continue }
        try send("* Good-bye.")
        return
      case "load":
        let message = "\(name): \(line)"
        switch Int(words[1]) {
        case 3: break
        case 5: try send(message, message)
        case 6:
          try send(message)
          guard case .sendsAway = ending else { continue }
          try send(Self.reason)
          try connection.shutdownWrite()
          // Closed with unread bytes, the connection would be broken, and the reason lost.
          while try reader.readLine() != nil {}
          return
        case 7: held = message
        case 8: try send(message, held ?? "")
        default: try send(message)
        }
      default: break
      }
    }
  }
}
#endif
