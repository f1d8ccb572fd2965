import Coroutine
import CoroutineHTTP
import CoroutineNet

/// A server that sends each message of a WebSocket back: `web-socket [PORT]`; or, with a URL, a client that sends it
/// the lines of its arguments: `web-socket http://127.0.0.1:8080/ one two`.
@main
struct WebSocketProgram {
  static func main() {
    let arguments = CommandLine.arguments.dropFirst()
    co_main {
      if let url = arguments.first, url.contains("://") {
        try WebSocket.open(url, with: HTTPClient()) { socket, reader in
          for line in arguments.dropFirst() {
            try socket.send(.init(isText: true, bytes: Array(line.utf8)))
            print(String(decoding: try socket.receive(&reader)?.bytes ?? [], as: UTF8.self))
          }
          try socket.close()
          while try socket.receive(&reader) != nil {}
        }
      } else {
        let address = SocketAddress.loopback(port: arguments.first.flatMap { UInt16($0) } ?? 8080)
        try HTTPServer.run(address, onListening: { print("serving at \($0)") }, echo)
      }
    }
  }
}

/// Sends each message back, until the client closes.
@Sendable func echo(_ request: borrowing ServerRequest, _ response: inout ServerResponse) throws {
  try WebSocket.serve(request, &response) { socket, reader in
    while let message = try socket.receive(&reader) { try socket.send(message) }
  }
}
