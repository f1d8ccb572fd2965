internal import CLinux
import Coroutine
import CoroutineNet
import Glibc

/// The world's end of a listener: the connections that were not accepted yet, and a byte in the wire for each of them.
final class ListenerEnd: SimulatedListener, @unchecked Sendable {
  // Sound because a world runs on one thread. After the world, `closed` does nothing that others see.
  private let wire: Int32
  private let machine: Machine
  private let backlog: Int
  private weak var descriptor: WatchedDescriptor?
  private var waiting: [(socket: WatchedDescriptor, remote: SocketAddress)] = []
  private(set) var failure: Int32 = 0

  private init(_ machine: Machine, backlog: Int, wire: Int32) {
    self.machine = machine
    self.backlog = max(1, backlog)
    self.wire = wire
  }

  deinit { close(wire) }

  static func make(
    _ machine: Machine,
    at address: SocketAddress,
    backlog: Int
  ) throws(WatchedDescriptor.Failure) -> WatchedDescriptor {
    let (number, wire) = try Wires.pair()
    let end = ListenerEnd(machine, backlog: backlog, wire: wire)
    let descriptor = try WatchedDescriptor(number, shortReadMeansEmpty: false, simulated: end)
    end.descriptor = descriptor
    try machine.add(end, at: address)
    return descriptor
  }

  var isFull: Bool { waiting.count >= backlog }

  func arrive(_ socket: WatchedDescriptor, from remote: SocketAddress) {
    waiting.append((socket, remote))
    var byte: UInt8 = 0
    _ = clinux_send(wire, &byte, 1)
    descriptor?.arrived(.reading)
  }

  func next() -> (socket: WatchedDescriptor, remote: SocketAddress)? { waiting.isEmpty ? nil : waiting.removeFirst() }
  func used(_ direction: WatchedDescriptor.Direction) {}

  /// Resets the connections that were not accepted.
  func closed() {
    machine.remove(self)
    refuseAll()
  }

  /// Resets the connections that were not accepted, and fails further calls; called when the host crashes.
  func crash() {
    failure = ECONNABORTED
    refuseAll()
    descriptor?.arrived(.reading)
  }

  private func refuseAll() {
    let refused = waiting
    waiting = []
    for connection in refused {
      (connection.socket.simulated as? StreamEnd)?.crash()
      connection.socket.close()
    }
  }
}
