internal import CLinux
import Coroutine
import CoroutineNet
import Glibc

// A connection in a world consists of two pairs of sockets, and of the bytes in flight between them:
//
//   descriptor <-- pair --> wire  ··· out, in order, each at its time ···>  wire <-- pair --> descriptor
//
// The connections own the descriptors, and the ends own the wires. After each system call the end reads the written
// bytes from its wire (`pump`), at most a window of them. It writes them to the peer's wire (`deliver`) when they are
// due and the link is not cut. So a sender waits when the window and the socket's buffer are full, as with TCP.
//
// Invariants
//  1. `out` is in the order of writing, and its times do not decrease: bytes, then the end of the stream or a reset.
//  2. `inFlight` is the number of bytes in `out`. It exceeds `window` by at most one read.
//  3. Only the front of `out` is delivered, so nothing overtakes.
//  4. After a reset nothing is delivered in either direction, and every call of the descriptor fails.
//  5. A close counts when `closed` is called, whatever the wire says: a process that another thread forks has copies of
//     all descriptors until it runs its program, and so long the kernel does not take them for closed.
//  6. Each piece is asked about once, when it is delivered: whether it is read in two pieces. The second one is held
//     until nothing else can run, so that the receiver has read the first one, and waits.

/// One end of a connection.
final class StreamEnd: SimulatedStream, @unchecked Sendable {
  // Sound because a world runs on one thread. After the world, `closed` returns at once.
  //
  // The network holds the streams that may still deliver bytes, and releases them when its world has ended.
  private enum Content {
    case bytes([UInt8])
    case end
    case reset
  }

  let machine: Machine
  let connected: UInt64
  var number = 0
  private let wire: Int32
  private let network: World.Network
  private weak var descriptor: WatchedDescriptor?
  private weak var peer: StreamEnd?
  /// What is on its way, in a message of its own.
  private struct Message {
    var due: Duration
    var content: Content
    /// Whether bytes are delivered as they are.
    var isWhole = false
    /// Whether it waits for the receiver to have read what was before it.
    var isHeld = false
  }
  private var out: [Message] = []
  private var inFlight = 0
  private var hasEnded = false
  private var isClosed = false
  private(set) var failure: Int32 = 0

  private static var window: Int { 65_536 }

  private init(_ machine: Machine, _ network: World.Network, wire: Int32) {
    self.machine = machine
    self.network = network
    self.wire = wire
    connected = network.world.now
  }

  deinit { close(wire) }

  var target: Machine? { peer?.machine }

  /// Creates both ends of a connection, and their descriptors.
  static func pair(
    _ one: Machine,
    _ other: Machine,
    _ network: World.Network
  ) throws(WatchedDescriptor.Failure) -> (WatchedDescriptor, WatchedDescriptor) {
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

  /// Reads the written bytes from the wire, and sends them.
  private func pump() {
    guard failure == 0 else { return }
    var hasTaken = false
    while !hasEnded, inFlight < Self.window {
      var result: Int64 = 0
      let bytes = [UInt8](unsafeUninitializedCapacity: 16_384) { buffer, count in
        result = clinux_receive(wire, buffer.baseAddress, buffer.count)
        count = Int(max(0, result))
      }
      if result > 0 {
        hasTaken = true
        inFlight += bytes.count
        send(.bytes(bytes))
      } else if result == -Int64(EAGAIN), !isClosed {
        break
      } else {
        // An error means that the descriptor was closed before all received bytes were read.
        hasEnded = true
        send(result == 0 || result == -Int64(EAGAIN) && !hasUnread ? .end : .reset)
      }
    }
    if hasTaken { descriptor?.arrived(.writing) }
  }

  /// Whether the descriptor has not read everything that was put into its wire (SIOCOUTQ).
  private var hasUnread: Bool {
    var count: Int32 = 0
    return ioctl(wire, UInt(TIOCOUTQ), &count) == 0 && count > 0
  }

  // MARK: The direction to the peer

  private func send(_ content: Content) {
    // The peer has closed, and all its bytes have arrived: its host responds with a reset.
    guard let peer else { return fail() }
    let delay = network.link(machine, peer.machine).draw(network.world)
    let due = max(network.now + delay, out.last?.due ?? .zero)
    out.append(Message(due: due, content: content))
    if due == network.now { return deliver() }
    network.world.after(due - network.now) { [weak self] in self?.deliver() }
  }

  /// Sends the bytes again that a partition has held back.
  func resend() {
    guard let peer else { return }
    var last = Duration.zero
    for index in out.indices where out[index].due <= network.now {
      last = max(last, network.now + network.link(machine, peer.machine).draw(network.world))
      out[index].due = last
    }
    for index in out.indices { out[index].due = max(out[index].due, last) }
    for due in Set(out.map(\.due)).sorted() where due > network.now {
      network.world.after(due - network.now) { [weak self] in self?.deliver() }
    }
    deliver()
  }

  /// Writes the bytes that are due to the peer's wire.
  private func deliver() {
    guard let peer, network.isRunning else { return }
    var hasArrived = false
    while let first = out.first, first.due <= network.now, !first.isHeld,
      !network.link(machine, peer.machine).isCut
    {
      switch first.content {
      case .bytes(let bytes) where !first.isWhole:
        out[0].isWhole = true
        split(bytes)
      case .bytes(let bytes):
        let count = peer.isClosed ? -Int64(EPIPE) : clinux_send(peer.wire, bytes, bytes.count)
        // The receiver does not read. Its next read calls this again.
        if count == -Int64(EAGAIN) { return finish(peer, hasArrived) }
        guard count >= 0 else {
          // The receiver has closed: its host responds with a reset.
          out = []
          if peer.failure == 0, peer.isClosed { peer.refuse() }
          return retireIfDone()
        }
        inFlight -= Int(count)
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

  /// Makes two messages of the first one, if the world chooses so: the second is held.
  private func split(_ bytes: [UInt8]) {
    guard bytes.count > 1, network.world.chooseSplit() else { return }
    let cuts = Set([1, bytes.count / 2, bytes.count - 1]).sorted()
    let cut = cuts[network.world.choose(cuts.count)]
    out[0].content = .bytes(Array(bytes[..<cut]))
    out.insert(Message(due: out[0].due, content: .bytes(Array(bytes[cut...])), isWhole: true, isHeld: true), at: 1)
    network.world.after(.zero) { [weak self] in
      guard let self, let held = out.firstIndex(where: \.isHeld) else { return }
      out[held].isHeld = false
      deliver()
    }
  }

  private func finish(_ peer: StreamEnd, _ hasArrived: Bool) {
    if hasArrived { peer.descriptor?.arrived(.reading) }
    pump()
    retireIfDone()
  }

  private func retireIfDone() { if isClosed, hasEnded || failure != 0, out.isEmpty { network.remove(self) } }

  // MARK: Reset

  /// Responds with a reset to bytes that came after the close.
  private func refuse() {
    hasEnded = true
    out = []
    send(.reset)
  }

  /// Fails the connection; called when the peer's reset has arrived.
  private func reset() {
    fail()
    retireIfDone()
  }

  /// Resets the connection, because the host is down, or the program has asked for it: the bytes in flight still
  /// arrive, then the reset.
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
