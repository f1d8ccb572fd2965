import Coroutine
import CoroutineNet

/// An HTTP proxy at 127.0.0.1 and ::1, or at the sockets that systemd has passed: `proxy [PORT]`.
///
/// `curl -x http://localhost:8080 http://example.org` uses it. SIGTERM lets tunnels finish, for five seconds.
@main
struct ProxyProgram {
  static func main() {
    let port = CommandLine.arguments.dropFirst().first.flatMap { UInt16($0) } ?? 8080
    co_main(within: .seconds(6)) {
      let inherited = try Listener.inherited().map(\.listener)
      var options = Server.Options()
      options.drain = .seconds(5)
      options.onError = { error, peer in print("\(peer): \(error)") }
      let proxy = Proxy()
      if inherited.isEmpty {
        let addresses = [SocketAddress.loopback(port: port), try .ipv6("::1", port: port)]
        try Server.run(addresses, options: options, onListening: { print("listening at \($0)") }, proxy.serve)
      } else {
        try Server.run(listeners: inherited, options: options, proxy.serve)
      }
    }
  }
}
