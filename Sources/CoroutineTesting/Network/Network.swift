import Coroutine
import CoroutineNet
import Glibc

/// What the sockets of a world see: hosts with names and addresses, and links between them.
///
/// In a world, the connections, listeners and datagram sockets of CoroutineNet are the network's; nothing is injected.
/// Each host has an address of its own, with all ports. The body of the world, and whatever runs outside of a host, is
/// on the host "body". Streams behave as TCP does: bytes arrive in order, a sender waits while its receiver does not
/// read, each direction ends by itself, and a connection can be reset. Datagrams may get lost on a partition.
///
/// All functions are called inside of the world; none suspends.
public final class Network: @unchecked Sendable {
  // Sound because a world runs on one thread, and nothing else uses its network.

  let world: SimulatedWorld
  private(set) var machines: [Machine] = []
  private var links: [Link.Ends: Link] = [:]
  /// The streams whose bytes are under way, or may still come.
  private var streams: [ObjectIdentifier: StreamEnd] = [:]

  /// The host of a coroutine; nil for the host "body".
  static let here = CoroutineLocal<Machine?>(default: nil)

  init(_ world: SimulatedWorld) {
    self.world = world
    machines = [Machine("body", number: 1, body: nil)]
  }

  // MARK: Hosts

  /// Adds a host, and runs `body` in a coroutine on it.
  ///
  /// Every coroutine that `body` launches is on the host as well. `SocketAddress.resolve(_:port:)` finds the host by
  /// its name. An error that `body` throws fails the world's run, unless the host has crashed. When the world's own
  /// body ends, every host crashes, silently: a server need not be stopped.
  public func host(_ name: String, _ body: @escaping @Sendable () throws -> Void) {
    if machines.contains(where: { $0.name == name }) { preconditionFailure("two hosts are called \(name)") }
    let machine = Machine(name, number: machines.count + 1, body: body)
    machines.append(machine)
    boot(machine)
  }

  private func boot(_ machine: Machine) {
    guard let body = machine.body else { return }
    machine.life += 1
    let life = machine.life
    machine.isUp = true
    let world = world
    Self.here.withValue(machine) {
      _ = co_launch(name: machine.name) {
        do {
          try body()
        } catch {
          if machine.isUp, machine.life == life { world.fail(error) }
        }
      }
    }
  }

  /// Crashes a host: its coroutines are cancelled, its connections are reset, its listeners are gone.
  ///
  /// What its coroutines still write, while they unwind, reaches nobody. Peers see the reset as soon as the network
  /// brings it. A host that is down stays so. The host "body" cannot crash.
  public func crash(_ host: String) {
    let machine = machine(host)
    guard machine.isUp, machine.body != nil else { return }
    machine.isUp = false
    machine.closePorts()
    for stream in streams.values.sorted(by: { $0.number < $1.number }) where stream.machine === machine {
      stream.crash()
    }
    world.cancel(Self.here) { $0 === machine }
  }

  /// Runs the body of a host again; one that is up crashes before.
  public func restart(_ host: String) {
    crash(host)
    boot(machine(host))
  }

  /// Crashes every host: the world's body has ended.
  func stop() { for machine in machines { crash(machine.name) } }

  /// Lets go of everything: the world has ended.
  func end() {
    streams = [:]
    for machine in machines { machine.closePorts() }
  }

  // MARK: Links

  /// Sets how long whatever is sent from one host to another is under way: at first no time.
  ///
  /// The world draws each duration: the least, the greatest, or one of three between. A stream's bytes stay in order.
  public func latency(_ from: String, _ to: String, _ range: ClosedRange<Duration>) {
    precondition(range.lowerBound >= .zero, "nothing arrives before it was sent")
    link(machine(from), machine(to)).latency = range
  }

  /// Lets nothing pass from one host to another: bytes wait, datagrams are lost, connecting is tried again until it
  /// times out, after about two minutes.
  public func partition(_ from: String, _ to: String) { link(machine(from), machine(to)).isCut = true }

  /// Ends a partition; what has waited is sent.
  public func heal(_ from: String, _ to: String) {
    let link = link(machine(from), machine(to))
    guard link.isCut else { return }
    link.isCut = false
    for stream in streams.values.sorted(by: { $0.number < $1.number })
    where stream.machine === link.from && stream.target === link.to {
      stream.resend()
    }
  }

  func link(_ from: Machine, _ to: Machine) -> Link {
    let ends = Link.Ends(from: from.number, to: to.number)
    if let found = links[ends] { return found }
    let made = Link(from, to, world)
    links[ends] = made
    return made
  }

  // MARK: Finding

  private func machine(_ name: String) -> Machine {
    guard let found = machines.first(where: { $0.name == name }) else {
      preconditionFailure("no host is called \(name)")
    }
    return found
  }

  /// The host of the calling coroutine.
  var caller: Machine { Self.here.value ?? machines[0] }

  /// The host that an address names, seen from `machine`.
  func owner(of address: SocketAddress, from machine: Machine) -> Machine? {
    if address.port == nil || ["127.0.0.1", "::1", "0.0.0.0", "::"].contains(address.host) { return machine }
    return machines.first { $0.address == address.host }
  }

  private var lastStream = 0
  func add(_ stream: StreamEnd) {
    lastStream += 1
    stream.number = lastStream
    streams[ObjectIdentifier(stream)] = stream
  }
  func remove(_ stream: StreamEnd) { streams[ObjectIdentifier(stream)] = nil }
}

/// A host.
final class Machine: @unchecked Sendable {
  // Sound because a world runs on one thread, and nothing else uses its hosts.
  let name: String
  let number: Int
  let body: (@Sendable () throws -> Void)?
  var isUp = true
  /// Counts the starts.
  var life = 0
  private var listeners: [String: ListenerEnd] = [:]
  private var datagrams: [String: DatagramEnd] = [:]
  private var lastPort: UInt16 = 49_151

  init(_ name: String, number: Int, body: (@Sendable () throws -> Void)?) {
    self.name = name
    self.number = number
    self.body = body
  }

  var address: String { "10.0.\(number >> 8).\(number & 255)" }

  func address(port: UInt16) -> SocketAddress {
    // Never thrown: it is a literal address.
    (try? .ipv4(address, port: port)) ?? .loopback(port: port)
  }

  func takePort() -> UInt16 {
    lastPort = lastPort == .max ? 49_152 : lastPort + 1
    return lastPort
  }

  /// What has a port, or the path of a Unix socket; addresses of one host are not told apart.
  private static func key(_ address: SocketAddress) -> String { address.port.map { "\($0)" } ?? address.description }

  /// The address that a socket gets which is bound to `address`.
  func bound(_ address: SocketAddress) throws -> SocketAddress {
    guard let port = address.port, port == 0 else { return address }
    let chosen = takePort()
    return address.host == "127.0.0.1" ? .loopback(port: chosen) : self.address(port: chosen)
  }

  func add(_ listener: ListenerEnd, at address: SocketAddress) throws {
    guard listeners[Self.key(address)] == nil else { throw WatchedDescriptor.Failure.system(EADDRINUSE) }
    listeners[Self.key(address)] = listener
  }

  func add(_ socket: DatagramEnd, at address: SocketAddress) throws {
    guard datagrams[Self.key(address)] == nil else { throw WatchedDescriptor.Failure.system(EADDRINUSE) }
    datagrams[Self.key(address)] = socket
  }

  func listener(at address: SocketAddress) -> ListenerEnd? { listeners[Self.key(address)] }
  func datagrams(at address: SocketAddress) -> DatagramEnd? { datagrams[Self.key(address)] }

  func remove(_ listener: ListenerEnd) { listeners = listeners.filter { $0.value !== listener } }
  func remove(_ socket: DatagramEnd) { datagrams = datagrams.filter { $0.value !== socket } }

  func closePorts() {
    for (_, listener) in listeners.sorted(by: { $0.key < $1.key }) { listener.crash() }
    for (_, socket) in datagrams.sorted(by: { $0.key < $1.key }) { socket.crash() }
    (listeners, datagrams) = ([:], [:])
  }
}

/// One way from a host to another.
final class Link {
  struct Ends: Hashable {
    let from: Int
    let to: Int
  }

  let from: Machine
  let to: Machine
  var latency: ClosedRange<Duration> = .zero ... .zero
  var isCut = false
  private let world: SimulatedWorld

  init(_ from: Machine, _ to: Machine, _ world: SimulatedWorld) {
    self.from = from
    self.to = to
    self.world = world
  }

  /// Draws how long the next message is under way.
  func draw() -> Duration {
    let width = latency.upperBound - latency.lowerBound
    return width == .zero ? latency.lowerBound : latency.lowerBound + width * world.choose(5) / 4
  }
}
