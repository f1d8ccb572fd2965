#if Demo
/// Why a connection ends: the cause with which its outbox is closed.
enum ChatEnding: Error, Equatable {
  /// The client has said /quit.
  case quit
  /// The client has closed, or the network has broken the connection.
  case gone
  /// The client has said nothing for so many seconds.
  case idle(seconds: Double)
  /// So many messages were waiting for the client, and one more came.
  case tooSlow(backlog: Int)
  /// The server stops.
  case closing
  /// So many clients are here already.
  case full(limit: Int)

  /// The last line that the client gets; nil if no client is there to get it.
  var lastLine: String? {
    switch self {
    case .quit: "* Good-bye."
    case .gone: nil
    case .idle(let seconds): "* You have said nothing for \(seconds.readable) s. Good-bye."
    case .tooSlow(let backlog):
      "* You read too slowly: \(backlog) messages were waiting for you, and the next ones are lost. Good-bye."
    case .closing: "* The server stops. Good-bye."
    case .full(let limit): "! full There are \(limit) clients already. Try again later."
    }
  }

  /// What the others are told beside that the client has left.
  var remark: String {
    switch self {
    case .quit, .closing, .full: ""
    case .gone: " (gone)"
    case .idle: " (idle)"
    case .tooSlow: " (too slow)"
    }
  }
}
#endif
