package import Coroutine

// The seam to the network of a simulated world (the product CoroutineTesting). A world makes the sockets: it returns
// descriptors behind which a `SimulatedEnd` stands, and everything that works with bytes stays as it is. Outside of a
// world, `current` costs one load.

/// The network of a world.
///
/// Its functions throw `WatchedDescriptor.Failure`; `connect` suspends, and throws the cancellation error.
package protocol SimulatedNetwork: AnyObject {
  func connect(to address: SocketAddress) throws -> (socket: WatchedDescriptor, local: SocketAddress)
  func listen(at address: SocketAddress, backlog: Int) throws -> (socket: WatchedDescriptor, bound: SocketAddress)
  func bindDatagrams(_ address: SocketAddress) throws -> (socket: WatchedDescriptor, bound: SocketAddress)
  func pair() throws -> (WatchedDescriptor, WatchedDescriptor)
  /// The addresses of a name; none if it has none.
  func resolve(_ host: String, port: UInt16) -> [SocketAddress]
}

/// What stands behind a listener: each byte that can be read from the descriptor is a connection that can be taken.
package protocol SimulatedListener: SimulatedEnd {
  func next() -> (socket: WatchedDescriptor, remote: SocketAddress)?
}

/// What stands behind a socket for datagrams: each byte that can be read from the descriptor is a datagram.
package protocol SimulatedDatagrams: SimulatedEnd {
  func next() -> (bytes: [UInt8], from: SocketAddress)?
  func send(_ bytes: [UInt8], to address: SocketAddress)
}

enum Simulated {
  /// The network of the calling code's world, nil outside.
  static var current: (any SimulatedNetwork)? { SimulatedWorld.currentNetwork as? any SimulatedNetwork }
}
