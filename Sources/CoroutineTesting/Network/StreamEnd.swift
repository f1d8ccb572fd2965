internal import CLinux
import Coroutine
import Glibc

// A connection in a world is two pairs of sockets, and what is under way between them:
//
//   descriptor <-- pair --> wire  ··· out, in order, each at its time ···>  wire <-- pair --> descriptor
//
// The descriptors belong to the connections, the wires to the ends. After each system call the end takes from its wire
// what was written (`pump`), at most a window of it, and puts it into the peer's wire (`deliver`) when it is due and no
// partition holds it. So a sender waits when the window and the socket's buffer are full, as with TCP.
//
// Invariants
//  1. `out` is in the order of writing, and its times do not decrease: bytes, then the end of the stream or a reset.
//  2. `underWay` is the number of bytes in `out`. It is at most `window` and one read more.
//  3. Only the front of `out` is delivered, so nothing overtakes.
//  4. After a reset nothing is delivered in either direction, and every call of the descriptor fails.

/// One end of a connection.
final class StreamEnd: SimulatedEnd, @unchecked Sendable {
  // Sound because a world runs on one thread. After the world, `closed` returns at once.
  //
  // The network, which holds the streams under way, lets go of them when its world has ended.
  private enum Content {
    case bytes([UInt8])
    case end
    case reset
  }

  let machine: Machine
  var number = 0
  private let wire: Int32
  private let network: Network
  private weak var descriptor: WatchedDescriptor?
  private weak var peer: StreamEnd?
  private var out: [(due: Duration, content: Content)] = []
  private var underWay = 0
  private var hasEnded = false
  private var isClosed = false
  private(set) var failure: Int32 = 0

  private static var window: Int { 65_536 }

  private init(_ machine: Machine, _ network: Network, wire: Int32) {
    self.machine = machine
    self.network = network
    self.wire = wire
  }

  deinit { close(wire) }

  var target: Machine? { peer?.machine }

  /// Creates both ends of a connection, and their descriptors.
  static func pair(
    _ one: Machine,
    _ other: Machine,
    _ network: Network
  ) throws -> (WatchedDescriptor, WatchedDescriptor) {
    let (first, firstWire) = try Wires.pair()
    let (second, secondWire) = try Wires.pair()
    let (near, far) = (StreamEnd(one, network, wire: firstWire), StreamEnd(other, network, wire: secondWire))
    (near.peer, far.peer) = (far, near)
    let ends = (
      try WatchedDescriptor(first, shortReadMeansEmpty: false, simulated: near),
      try WatchedDescriptor(second, shortReadMeansEmpty: false, simulated: far)
    )
    (near.descriptor, far.descriptor) = (ends.0, ends.1)
    network.add(near)
    network.add(far)
    return ends
  }

  // MARK: The descriptor's side

  func used(_ direction: WatchedDescriptor.Direction) {
    guard network.isRunning else { return }
    if direction == .writing { pump() } else { peer?.deliver() }
  }

  func closed() {
    isClosed = true
    guard network.isRunning else { return }
    pump()
    retireIfDone()
  }

  /// Takes what was written from the wire, and sends it.
  private func pump() {
    guard failure == 0 else { return }
    var hasTaken = false
    while !hasEnded, underWay < Self.window {
      var result: Int64 = 0
      let bytes = [UInt8](unsafeUninitializedCapacity: 16_384) { buffer, count in
        result = clinux_receive(wire, buffer.baseAddress, buffer.count)
        count = Int(max(0, result))
      }
      if result > 0 {
        hasTaken = true
        underWay += bytes.count
        send(.bytes(bytes))
      } else if result == -Int64(EAGAIN) {
        break
      } else {
        // Closed with bytes that it had not read, if it is no regular end.
        hasEnded = true
        send(result == 0 ? .end : .reset)
      }
    }
    if hasTaken { descriptor?.arrived(.writing) }
  }

  // MARK: The way to the peer

  private func send(_ content: Content) {
    // The peer has closed, and everything of it has arrived: its host answers with a reset.
    guard let peer else { return fail() }
    let delay = network.link(machine, peer.machine).draw()
    let due = max(network.now + delay, out.last?.due ?? .zero)
    out.append((due, content))
    if due == network.now { return deliver() }
    network.world.after(due - network.now) { [weak self] in self?.deliver() }
  }

  /// Sends everything again that a partition has held.
  func resend() {
    guard let peer else { return }
    var last = Duration.zero
    for index in out.indices where out[index].due <= network.now {
      last = max(last, network.now + network.link(machine, peer.machine).draw())
      out[index].due = last
    }
    for index in out.indices { out[index].due = max(out[index].due, last) }
    for due in Set(out.map(\.due)).sorted() where due > network.now {
      network.world.after(due - network.now) { [weak self] in self?.deliver() }
    }
    deliver()
  }

  /// Gives the peer what is due.
  private func deliver() {
    guard let peer, network.isRunning else { return }
    var hasArrived = false
    while let first = out.first, first.due <= network.now, !network.link(machine, peer.machine).isCut {
      switch first.content {
      case .bytes(let bytes):
        let count = clinux_send(peer.wire, bytes, bytes.count)
        // The receiver does not read: its next read continues here.
        if count == -Int64(EAGAIN) { return finish(peer, hasArrived) }
        guard count >= 0 else {
          // The receiver has closed: its host answers with a reset.
          out = []
          if peer.failure == 0, peer.isClosed { peer.refuse() }
          return retireIfDone()
        }
        underWay -= Int(count)
        hasArrived = true
        if count == bytes.count { out.removeFirst() } else { out[0].content = .bytes(Array(bytes[Int(count)...])) }
      case .end:
        out.removeFirst()
        shutdown(peer.wire, Int32(SHUT_WR))
        hasArrived = true
      case .reset:
        out = []
        peer.reset()
      }
    }
    finish(peer, hasArrived)
  }

  private func finish(_ peer: StreamEnd, _ hasArrived: Bool) {
    if hasArrived { peer.descriptor?.arrived(.reading) }
    pump()
    retireIfDone()
  }

  private func retireIfDone() { if isClosed, hasEnded || failure != 0, out.isEmpty { network.remove(self) } }

  // MARK: Reset

  /// Answers bytes that came after the close.
  private func refuse() {
    hasEnded = true
    out = []
    send(.reset)
  }

  /// The connection is broken: the peer's reset has arrived.
  private func reset() {
    fail()
    retireIfDone()
  }

  /// The host is down: what is under way still arrives, then the reset.
  func crash() {
    guard failure == 0 else { return }
    hasEnded = true
    send(.reset)
    fail()
  }

  private func fail() {
    failure = ECONNRESET
    hasEnded = true
    descriptor?.arrived(.reading)
    descriptor?.arrived(.writing)
  }
}

enum Wires {
  /// Returns a connected pair of sockets: for a descriptor, and for what stands behind it.
  static func pair() throws -> (Int32, Int32) {
    var ends: (Int32, Int32) = (-1, -1)
    let code = withUnsafeMutableBytes(of: &ends) { bytes in
      bytes.withMemoryRebound(to: Int32.self) { clinux_socket_pair($0.baseAddress.unsafelyUnwrapped) }
    }
    guard code == 0 else { throw WatchedDescriptor.Failure.system(-code) }
    return ends
  }
}
