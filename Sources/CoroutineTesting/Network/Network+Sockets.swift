package import Coroutine
package import CoroutineNet
import Glibc

extension World.Network: SimulatedNetwork {
  var now: Duration { .nanoseconds(Int64(world.elapsed)) }

  /// Whether the calling code is in the world, so that bytes can still be sent.
  var isRunning: Bool { core.map { SimulatedWorld.current === $0 } ?? false }

  /// The pauses, in seconds, between attempts to connect; those of Linux.
  private static var pauses: [Int] { [1, 2, 4, 8, 16, 32, 64] }

  package func connect(
    to address: SocketAddress
  ) throws -> (socket: WatchedDescriptor, local: SocketAddress, remote: SocketAddress) {
    let machine = try caller()
    let address = Machine.peer(at: address)
    guard let target = owner(of: address, from: machine) else { throw WatchedDescriptor.Failure.system(EHOSTUNREACH) }
    let (there, back) = (link(machine, target), link(target, machine))
    for pause in Self.pauses {
      // A partition loses the request or its response. The next attempt sends the request again.
      if !there.isCut {
        try wait(there.draw(world))
        _ = try caller()
        let local = address.port == nil ? address : machine.address(port: machine.takePort())
        if target.isUp, !back.isCut, let socket = try answer(address, machine, local, target) {
          try wait(back.draw(world))
          return (socket, local, address)
        }
      }
      try co_delay(.seconds(pause))
      _ = try caller()
    }
    throw WatchedDescriptor.Failure.system(ETIMEDOUT)
  }

  /// Connects to a listener of `target`; returns nil if the host does not respond, because its backlog is full.
  private func answer(
    _ address: SocketAddress,
    _ machine: Machine,
    _ local: SocketAddress,
    _ target: Machine
  ) throws -> WatchedDescriptor? {
    guard let listener = target.listener(at: address) else {
      try wait(link(target, machine).draw(world))
      throw WatchedDescriptor.Failure.system(address.port == nil ? ENOENT : ECONNREFUSED)
    }
    if listener.isFull { return nil }
    let (near, far) = try StreamEnd.pair(machine, target, self)
    listener.arrive(far, from: local)
    return near
  }

  private func wait(_ duration: Duration) throws {
    if duration > .zero { try co_delay(duration) } else { try co_checkCancelled() }
  }

  package func listen(
    at address: SocketAddress,
    backlog: Int
  ) throws(WatchedDescriptor.Failure) -> (socket: WatchedDescriptor, bound: SocketAddress) {
    let machine = try caller()
    let bound = machine.bound(address)
    return (try ListenerEnd.make(machine, at: bound, backlog: backlog), bound)
  }

  package func bindDatagrams(
    _ address: SocketAddress
  ) throws(WatchedDescriptor.Failure) -> (socket: WatchedDescriptor, bound: SocketAddress) {
    let machine = try caller()
    let bound = machine.bound(address)
    return (try DatagramEnd.make(machine, at: bound, self), bound)
  }

  package func resolve(_ name: String, port: UInt16) -> [SocketAddress] {
    if name == "localhost" { return [.loopback(port: port)] }
    return machines.filter { $0.name == name }.map { $0.address(port: port) }
  }

  package func pair() throws(WatchedDescriptor.Failure) -> (WatchedDescriptor, WatchedDescriptor) {
    let machine = try caller()
    return try StreamEnd.pair(machine, machine, self)
  }
}
