import Coroutine
import CoroutineNet

/// A DNS server at all addresses of the machine, or at the sockets that systemd has passed: `name-server [PORT]`.
///
/// `dig @127.0.0.2 -p 5353 localhost` asks it.
@main
struct NameServerProgram {
  static func main() {
    let port = CommandLine.arguments.dropFirst().first.flatMap { UInt16($0) } ?? 5353
    co_main {
      let inherited = try DatagramSocket.inherited().map(\.socket)
      let sockets = inherited.isEmpty ? [try DatagramSocket.bind(.any(port: port))] : inherited
      try co_scope { scope in
        for socket in sockets {
          print("answering at \(socket.address)")
          scope.launch { try NameServer.run(socket) }
        }
        try co_await(co_stopping)
        scope.cancel()
      }
    }
  }
}
