internal import CLinux
import Coroutine
import CoroutineNet
import Glibc

/// The world's end of a datagram socket: the datagrams that have arrived, and a byte in the wire for each of them.
final class DatagramEnd: SimulatedDatagrams, @unchecked Sendable {
  // Sound because a world runs on one thread. After the world, `closed` does nothing that others see.
  private let wire: Int32
  private let machine: Machine
  private let address: SocketAddress
  private let network: World.Network
  private weak var descriptor: WatchedDescriptor?
  private var waiting: [(bytes: [UInt8], from: SocketAddress, to: SocketAddress)] = []
  private(set) var failure: Int32 = 0

  /// The largest number of datagrams that wait for a receiver; further ones are lost.
  private static var most: Int { 256 }

  private init(_ machine: Machine, _ address: SocketAddress, _ network: World.Network, wire: Int32) {
    self.machine = machine
    self.address = address
    self.network = network
    self.wire = wire
  }

  deinit { close(wire) }

  static func make(
    _ machine: Machine,
    at address: SocketAddress,
    _ network: World.Network
  ) throws(WatchedDescriptor.Failure) -> WatchedDescriptor {
    let (number, wire) = try Wires.pair()
    let end = DatagramEnd(machine, address, network, wire: wire)
    let descriptor = try WatchedDescriptor(number, shortReadMeansEmpty: false, simulated: end)
    end.descriptor = descriptor
    try machine.add(end, at: address)
    return descriptor
  }

  func next() -> (bytes: [UInt8], from: SocketAddress, to: SocketAddress)? {
    waiting.isEmpty ? nil : waiting.removeFirst()
  }
  func used(_ direction: WatchedDescriptor.Direction) {}
  func closed() { machine.remove(self) }

  func send(_ bytes: [UInt8], to target: SocketAddress, from source: SocketAddress?) -> Bool {
    let target = target.canonical
    if let source, network.owner(of: source.canonical, from: machine) !== machine { return false }
    guard failure == 0, network.isRunning, let owner = network.owner(of: target, from: machine) else { return true }
    let link = network.link(machine, owner)
    if link.isCut || link.drawLoss(network.world) { return true }
    let sender = source?.canonical ?? (owner === machine ? address : machine.address(port: address.port ?? 0))
    let delay = link.draw(network.world)
    if delay == .zero {
      owner.datagrams(at: target)?.arrive(bytes, from: sender, to: target)
    } else {
      network.world.after(delay) { owner.datagrams(at: target)?.arrive(bytes, from: sender, to: target) }
    }
    return true
  }

  private func arrive(_ bytes: [UInt8], from sender: SocketAddress, to target: SocketAddress) {
    guard waiting.count < Self.most else { return }
    waiting.append((bytes, sender, target))
    var byte: UInt8 = 0
    _ = clinux_send(wire, &byte, 1)
    descriptor?.arrived(.reading)
  }

  /// Loses the datagrams that have arrived, and fails further calls; called when the host crashes.
  func crash() {
    failure = ECONNABORTED
    waiting = []
    descriptor?.arrived(.reading)
  }
}
