import Coroutine
import CoroutineNet
import Glibc

/// A host of a world's network, with its ports.
///
/// It is not called Host, because a `Host` drives a scheduler.
final class Machine: @unchecked Sendable {
  // Sound because a world runs on one thread, and nothing else uses its hosts.
  let name: String
  let number: Int
  let body: (@Sendable () throws -> Void)?
  var isUp: Bool
  /// The number of times that the host was started.
  var life = 0
  private var listeners: [String: ListenerEnd] = [:]
  private var datagrams: [String: DatagramEnd] = [:]
  private var lastPort: UInt16 = 49_151

  init(_ name: String, number: Int, body: (@Sendable () throws -> Void)?) {
    self.name = name
    self.number = number
    self.body = body
    isUp = body == nil
  }

  var address: String { "10.0.\(number >> 8).\(number & 255)" }

  func address(port: UInt16) -> SocketAddress {
    // `ipv4` never throws here, because the address is literal.
    (try? .ipv4(address, port: port)) ?? .loopback(port: port)
  }

  /// The address at which a connection to `address` finds its peer, as on Linux: the loopback for 0.0.0.0 and [::].
  static func peer(at address: SocketAddress) -> SocketAddress {
    let address = address.canonical
    guard let port = address.port else { return address }
    switch address.host {
    case "0.0.0.0": return .loopback(port: port)
    case "::": return (try? .ipv6("::1", port: port)) ?? address
    default: return address
    }
  }

  func takePort() -> UInt16 {
    lastPort = lastPort == .max ? 49_152 : lastPort + 1
    return lastPort
  }

  /// The key of a socket: its port, or the path of a Unix socket.
  ///
  /// All addresses of one host share their ports.
  private static func key(_ address: SocketAddress) -> String { address.port.map { "\($0)" } ?? address.description }

  /// Returns the address of a socket that is bound to `address`: with a free port in place of port 0.
  func bound(_ address: SocketAddress) -> SocketAddress {
    guard let port = address.port, port == 0 else { return address }
    let chosen = takePort()
    return address.host == "127.0.0.1" ? .loopback(port: chosen) : self.address(port: chosen)
  }

  func add(_ listener: ListenerEnd, at address: SocketAddress) throws(WatchedDescriptor.Failure) {
    guard listeners[Self.key(address)] == nil else { throw .system(EADDRINUSE) }
    listeners[Self.key(address)] = listener
  }

  func add(_ socket: DatagramEnd, at address: SocketAddress) throws(WatchedDescriptor.Failure) {
    guard datagrams[Self.key(address)] == nil else { throw .system(EADDRINUSE) }
    datagrams[Self.key(address)] = socket
  }

  func listener(at address: SocketAddress) -> ListenerEnd? { listeners[Self.key(address)] }
  func datagrams(at address: SocketAddress) -> DatagramEnd? { datagrams[Self.key(address)] }

  func remove(_ listener: ListenerEnd) { listeners = listeners.filter { $0.value !== listener } }
  func remove(_ socket: DatagramEnd) { datagrams = datagrams.filter { $0.value !== socket } }

  /// Closes all ports, in a fixed order: the host crashes, or the world has ended.
  func closePorts() {
    for (_, listener) in listeners.sorted(by: { $0.key < $1.key }) { listener.crash() }
    for (_, socket) in datagrams.sorted(by: { $0.key < $1.key }) { socket.crash() }
    (listeners, datagrams) = ([:], [:])
  }
}
