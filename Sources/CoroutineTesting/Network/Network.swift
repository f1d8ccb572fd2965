import Coroutine
import CoroutineNet
import Glibc

extension World {
  /// The network of a world: hosts with names and addresses, and links between them.
  ///
  /// In a world, the connections, listeners and datagram sockets of CoroutineNet use this network. The code under test
  /// does not change.
  /// - Each host has its own address, with all ports. The body of the world, and all code outside a host, is on the
  ///   host "body".
  /// - Streams behave as TCP does: bytes arrive in order, a sender waits while its receiver does not read, each
  ///   direction ends by itself, and a connection can be reset. What was written in one piece may be read in several,
  ///   by a choice of the world, and pieces that have arrived are read together.
  /// - Datagrams may be lost.
  ///
  /// The functions are called before the world runs, or inside it. None of them suspends; a call from outside a running
  /// world traps. Hosts that were added before start with the world. Links may be described before their hosts are
  /// added.
  public final class Network: @unchecked Sendable {
    // Sound because a world runs on one thread, and nothing else uses its network while it does.

    /// The world, while it runs.
    private(set) var core: SimulatedWorld?
    private(set) var machines: [Machine] = []
    private var links: [Link.Ends: Link] = [:]
    /// The clocks that have had another rate than the world's, by the names of their hosts.
    private var clocks: [String: LocalClock] = [:]
    /// The streams that may still send or deliver bytes.
    private var streams: [ObjectIdentifier: StreamEnd] = [:]

    /// The host of a coroutine, and the number of its life; nil for the host "body".
    static let here = CoroutineLocal<(machine: Machine, life: Int)?>(default: nil)

    init() { machines = [Machine("body", number: 1, body: nil)] }

    var world: SimulatedWorld {
      guard let core else { misuse("the sockets of a world are used while it runs") }
      return core
    }

    /// Makes `core` the world of this network; called before the world runs.
    func join(_ core: SimulatedWorld) {
      self.core = core
      if !clocks.isEmpty { useClocks(in: core) }
    }

    /// Starts the hosts that were added before the world; called in the world.
    func begin() { for machine in machines where !machine.isUp { boot(machine) } }

    private func requireInside() {
      if let core, SimulatedWorld.current !== core {
        misuse("the network of a world that runs is changed inside of it")
      }
    }

    // MARK: Hosts

    /// Adds a host, and runs `body` in a coroutine on it.
    ///
    /// Every coroutine that `body` launches is on the host as well. `SocketAddress.resolve(_:port:)` finds the host by
    /// its name; a second host of that name traps. An error that `body` throws fails the world's run, unless the host
    /// has crashed. When the world's own body ends, every host crashes, which is no failure of the run: a server need
    /// not be stopped. The run's end removes the hosts.
    public func host(_ name: String, _ body: @escaping @Sendable () throws -> Void) {
      requireInside()
      if machines.contains(where: { $0.name == name }) { misuse("two hosts are called \(name)") }
      let machine = Machine(name, number: machines.count + 1, body: body)
      machines.append(machine)
      if core != nil { boot(machine) }
    }

    private func boot(_ machine: Machine) {
      guard let body = machine.body else { return }
      machine.life += 1
      let life = machine.life
      machine.isUp = true
      let world = world
      Self.here.withValue((machine, life)) {
        _ = co_launch(name: machine.name) {
          do {
            try body()
          } catch {
            if machine.isUp, machine.life == life { world.fail(error) }
          }
        }
      }
    }

    /// Crashes a host: cancels its coroutines, resets its connections, and closes its listeners.
    ///
    /// Bytes that its coroutines write while they unwind are lost, and to open a socket then fails with `ENETDOWN`.
    /// Peers get the reset when the link's latency has passed. Crashing a host that is down, or the host "body", has no
    /// effect. A name that no host has traps.
    public func crash(_ host: String) {
      requireInside()
      let machine = machine(host)
      guard machine.isUp, machine.body != nil else { return }
      machine.isUp = false
      world.crashed(Self.here) { here in here.map { !$0.machine.isUp || $0.machine.life != $0.life } ?? false }
      machine.closePorts()
      for stream in streams.values.sorted(by: { $0.number < $1.number }) where stream.machine === machine {
        stream.crash()
      }
      world.cancel(Self.here) { $0?.machine === machine }
    }

    /// Runs the body of a host again; if the host is up, crashes it first.
    public func restart(_ host: String) {
      crash(host)
      boot(machine(host))
    }

    /// Crashes every host; called when the world's body has ended.
    func stop() {
      for machine in machines { crash(machine.name) }
    }

    /// Fails the run if a link or a clock names a host that was never added; called when the world's body has returned.
    func requireHostsOfLinks() {
      if links.isEmpty && clocks.isEmpty { return }
      for name in namesOfLinks where !machines.contains(where: { $0.name == name }) {
        world.fail(World.UnknownHostError(name: name))
      }
    }

    /// Releases the streams, the sockets, the hosts and the world; called when the world has ended.
    ///
    /// The body of a host often holds the world, which holds this network.
    func end() {
      streams = [:]
      for machine in machines { machine.closePorts() }
      machines.removeSubrange(1...)
      core?.clockOfCaller = nil
      core = nil
    }

    // MARK: Links

    /// Sets the latency from one host to another; zero at first.
    ///
    /// The world draws the latency of each message: the shortest, the longest, or one of three between. A stream's
    /// bytes stay in order. A latency is rounded up to nanoseconds. Beyond 292 years nothing arrives. A negative one
    /// traps.
    ///
    /// - Parameters:
    ///   - range: The shortest and the longest latency.
    ///   - from: The host that sends.
    ///   - to: The host that receives.
    public func setLatency(_ range: ClosedRange<Duration>, from: String, to: String) {
      if range.lowerBound < .zero {
        misuse("a latency is 0 or more, not \(range.lowerBound): nothing arrives before it was sent")
      }
      requireInside()
      link(from, to).latency = .nanoseconds(range.lowerBound.nanoseconds) ... .nanoseconds(range.upperBound.nanoseconds)
    }

    /// Sets the part of the datagrams from one host to another that is lost, from 0 to 1; 0 at first.
    ///
    /// For datagrams only: streams lose nothing, because their bytes are sent again; ``partition(from:to:)`` and
    /// ``crash(_:)`` disturb them. The part is rounded to sixteenths, and the world draws each loss. A part outside the
    /// range traps.
    ///
    /// - Parameters:
    ///   - part: The part that is lost.
    ///   - from: The host that sends.
    ///   - to: The host that receives.
    public func setLoss(_ part: Double, from: String, to: String) {
      if !(0...1).contains(part) { misuse("the part of the datagrams that is lost is from 0 to 1, not \(part)") }
      requireInside()
      link(from, to).lost = Int((part * 16).rounded())
    }

    /// Cuts the link from one host to another, in this direction only.
    ///
    /// Bytes of streams wait until ``heal(from:to:)``, and datagrams are lost. Connecting is tried again, and fails
    /// with `ETIMEDOUT` after about two minutes.
    ///
    /// - Parameters:
    ///   - from: The host that sends.
    ///   - to: The host that receives.
    public func partition(from: String, to: String) {
      requireInside()
      link(from, to).isCut = true
    }

    /// Ends a partition, and sends the bytes that have waited; has no effect on a link that is not cut.
    ///
    /// - Parameters:
    ///   - from: The host that sends.
    ///   - to: The host that receives.
    public func heal(from: String, to: String) {
      requireInside()
      let link = link(from, to)
      guard link.isCut else { return }
      link.isCut = false
      for stream in streams.values.sorted(by: { $0.number < $1.number })
      where stream.machine.name == from && stream.target?.name == to {
        stream.resend()
      }
    }

    func link(_ from: Machine, _ to: Machine) -> Link { link(from.name, to.name) }

    private func link(_ from: String, _ to: String) -> Link {
      let ends = Link.Ends(from: from, to: to)
      if let found = links[ends] { return found }
      let made = Link()
      links[ends] = made
      return made
    }

    /// The hosts that links and clocks name, in an order that is the same in every process.
    private var namesOfLinks: [String] { Set(links.keys.flatMap { [$0.from, $0.to] } + clocks.keys).sorted() }

    // MARK: Clocks

    func setClock(of host: String, millionths: UInt64) {
      requireInside()
      clocks[host, default: LocalClock()].run(atMillionths: millionths, from: core?.now ?? SimulatedWorld.start)
      if let core { useClocks(in: core) }
    }

    private func useClocks(in core: SimulatedWorld) {
      // Sound because the world that calls the closure holds the network, and `end` removes the closure.
      core.clockOfCaller = { [unowned(unsafe) self] in Self.here.value.flatMap { clocks[$0.machine.name] } }
    }

    // MARK: Finding

    private func machine(_ name: String) -> Machine {
      guard let found = machines.first(where: { $0.name == name }) else {
        misuse("no host is called \(name)")
      }
      return found
    }

    /// The host of the calling coroutine; throws `ENETDOWN` in one that outlives a crash of its host.
    ///
    /// A process that has died opens no socket, whatever its coroutines do while they unwind, and also if the host has
    /// begun its next life.
    func caller() throws(WatchedDescriptor.Failure) -> Machine {
      guard let here = Self.here.value else { return machines[0] }
      guard here.machine.isUp, here.machine.life == here.life else { throw .system(ENETDOWN) }
      return here.machine
    }

    /// Returns the host of an address, as `machine` resolves it; nil if there is none.
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
}
