package import Coroutine

// The interface to the network of a simulated world (the product CoroutineTesting). A world creates the sockets: it
// returns descriptors that each have a `SimulatedEnd`. The code that reads and writes bytes is the same as for real
// sockets. Outside a world, `current` costs one load.

/// The network of a world.
///
/// `connect` suspends, and throws the cancellation error too.
package protocol SimulatedNetwork: AnyObject {
  func connect(
    to address: SocketAddress
  ) throws -> (socket: WatchedDescriptor, local: SocketAddress, remote: SocketAddress)
  func listen(
    at address: SocketAddress,
    backlog: Int
  ) throws(WatchedDescriptor.Failure) -> (socket: WatchedDescriptor, bound: SocketAddress)
  func bindDatagrams(
    _ address: SocketAddress
  ) throws(WatchedDescriptor.Failure) -> (socket: WatchedDescriptor, bound: SocketAddress)
  func pair() throws(WatchedDescriptor.Failure) -> (WatchedDescriptor, WatchedDescriptor)
  /// Returns the addresses of a name; an empty array if the name is unknown.
  func resolve(_ host: String, port: UInt16) -> [SocketAddress]
}

/// The world's end of a connection.
package protocol SimulatedStream: SimulatedEnd {
  /// The world's time at which it was connected, in nanoseconds.
  var connected: UInt64 { get }
  /// Resets the connection: the bytes in flight still arrive.
  func crash()
}

/// The world's end of a listener: each byte that can be read from the descriptor stands for one waiting connection.
package protocol SimulatedListener: SimulatedEnd {
  func next() -> (socket: WatchedDescriptor, remote: SocketAddress)?
}

/// The world's end of a datagram socket: each byte that can be read from the descriptor stands for one datagram.
package protocol SimulatedDatagrams: SimulatedEnd {
  func next() -> (bytes: [UInt8], from: SocketAddress, to: SocketAddress)?
  /// Sends a datagram; returns false if `source` is given, and is no address of the host.
  func send(_ bytes: [UInt8], to address: SocketAddress, from source: SocketAddress?) -> Bool
}

enum Simulated {
  /// The network of the calling code's world, nil outside.
  static var current: (any SimulatedNetwork)? {
    guard let network = SimulatedWorld.currentNetwork else { return nil }
    guard let simulated = network as? any SimulatedNetwork else {
      misuse("the network of this world is missing in the program: link CoroutineTesting as a whole (-force_load)")
    }
    return simulated
  }
}
