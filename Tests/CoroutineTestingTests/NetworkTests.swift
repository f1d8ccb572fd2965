import Coroutine
import CoroutineNet
import CoroutineTesting
import Dispatch
import Glibc
import Synchronization
import Testing

/// The sockets of a world.
@Suite(.timeLimit(.minutes(10)))
struct NetworkTests {
  /// Runs a host "server" that sends back what it reads, and the body.
  private func withEcho<R: Sendable>(
    seed: UInt64? = nil,
    _ body: @escaping @Sendable (World, World.Network) throws -> R
  ) throws -> R {
    let world = World(seed: seed)
    return try world.run {
      world.network.host("server") { try serveEcho() }
      try world.settle()
      return try body(world, world.network)
    }
  }

  @Test func `a world whose hosts refer to it is released after its run`() throws {
    weak var released: World?
    do {
      let world = World()
      released = world
      world.network.host("added before") { _ = world.now }
      try world.run { world.network.host("added inside") { _ = world.now } }
    }
    #expect(released == nil)
  }

  @Test func `connections that outlive their world are reset, and can be closed and released`() async throws {
    let kept = Locked<[Connection]>([])
    try withEcho { _, _ in
      for _ in 0..<2 { kept.current.append(try Connection.connect(host: "server", port: 7)) }
    }
    let connections = kept.current
    await #expect(throws: NetError.self) { try await co_launch { try connections[0].read(upTo: 1) }.value }
    connections[0].close()
    kept.current = []
  }

  @Test func `a connection by name carries bytes both ways, and half of it can end`() throws {
    try withEcho { _, _ in
      let connection = try Connection.connect(host: "server", port: 7)
      #expect(connection.remoteAddress.description == "10.0.0.2:7")
      #expect(connection.localAddress.description.hasPrefix("10.0.0.1:"))
      try connection.write([1, 2, 3])
      #expect(try connection.read(upTo: 10) == [1, 2, 3])
      try connection.write([4])
      try connection.shutdownWrite()
      #expect(try connection.read(upTo: 10) == [4])
      #expect(try connection.read(upTo: 10).isEmpty)
    }
  }

  @Test func `latency is the world's time, drawn from the range by the seed`() throws {
    var times: Set<Duration> = []
    for seed in 0..<20 as Range<UInt64> {
      let passed = try withEcho(seed: seed) { world, network in
        let connection = try Connection.connect(host: "server", port: 7)
        network.setLatency(.milliseconds(10) ... .milliseconds(30), from: "body", to: "server")
        network.setLatency(.milliseconds(5) ... .milliseconds(5), from: "server", to: "body")
        let start = world.now
        try connection.write([1])
        #expect(try connection.read(upTo: 1) == [1])
        return world.now - start
      }
      #expect(passed >= .milliseconds(15) && passed <= .milliseconds(35))
      times.insert(passed)
    }
    #expect(times.count == 5)
  }

  @Test func `bytes stay in order, whatever each of them takes`() throws {
    for seed in 0..<20 as Range<UInt64> {
      try withEcho(seed: seed) { _, network in
        network.setLatency(.zero ... .seconds(1), from: "body", to: "server")
        network.setLatency(.zero ... .seconds(1), from: "server", to: "body")
        let connection = try Connection.connect(host: "server", port: 7)
        for number in 0..<20 as Range<UInt8> { try connection.write([number]) }
        var seen: [UInt8] = []
        while seen.count < 20 { seen += try connection.read(upTo: 20) }
        #expect(seen == Array(0..<20))
      }
    }
  }

  @Test func `a sender waits while its receiver does not read`() throws {
    let world = World()
    try world.run {
      world.network.host("slow") {
        let listener = try Listener.bind(.any(port: 1))
        let connection = try listener.accept()
        try co_delay(.seconds(60))
        var sum = 0
        while case let bytes = try connection.read(upTo: 100_000), !bytes.isEmpty { sum += bytes.count }
        try connection.write([UInt8(truncatingIfNeeded: sum / 1_000_000)])
        connection.close()
      }
      try world.settle()
      let connection = try Connection.connect(host: "slow", port: 1)
      try connection.write([UInt8](repeating: 7, count: 3_000_000))
      #expect(world.now == .seconds(60))
      try connection.shutdownWrite()
      #expect(try connection.read(upTo: 2) == [3])
    }
  }

  @Test func `a close counts at once, also while a forked process has a copy of the descriptor`() throws {
    try withEcho { world, _ in
      for isReset in [false, true] {
        let other = try Listener.bind(.any(port: 9))
        let far = try Connection.connect(to: other.address)
        let near = try other.accept()
        let copy = near.withUnsafeDescriptor { dup($0) }
        defer { close(copy) }
        if isReset {
          // Bytes that are not read before the close.
          try far.write([1])
          try world.settle()
        }
        near.close()
        if isReset {
          #expect(throws: NetError.self) { try co_timeout(.seconds(1)) { try far.read(upTo: 1) } }
          #expect(world.now == .zero)
        } else {
          #expect(try co_timeout(.seconds(1)) { try far.read(upTo: 1) }.isEmpty)
          // Nobody reads this any more, and the answer is a reset.
          try far.write([2])
          try world.settle()
          #expect(throws: NetError.self) { try far.write([3]) }
        }
        other.close()
      }
    }
  }

  @Test func `a partition holds bytes in its direction until it heals`() throws {
    try withEcho { world, network in
      let connection = try Connection.connect(host: "server", port: 7)
      network.partition(from: "server", to: "body")
      try connection.write([1])
      #expect(throws: TimeoutError.self) { try co_timeout(.seconds(30)) { try connection.read(upTo: 1) } }
      network.heal(from: "server", to: "body")
      #expect(try connection.read(upTo: 1) == [1])
      #expect(world.now == .seconds(30))
    }
  }

  @Test func `connecting over a partition times out, or succeeds when it heals`() throws {
    try withEcho { world, network in
      network.partition(from: "body", to: "server")
      let error = #expect(throws: NetError.self) { try Connection.connect(host: "server", port: 7) }
      #expect(error?.code == ETIMEDOUT)
      #expect(world.now == .seconds(127))
      co_launch {
        try co_delay(.seconds(2))
        network.heal(from: "body", to: "server")
      }
      _ = try Connection.connect(host: "server", port: 7)
      #expect(world.now == .seconds(130))
    }
  }

  @Test func `nobody listening refuses, and an unknown name has no address`() throws {
    try withEcho { _, _ in
      #expect(throws: NetError.self) { try Connection.connect(host: "nobody", port: 7) }
      let error = #expect(throws: NetError.self) { try Connection.connect(host: "server", port: 8) }
      #expect(error?.code == ECONNREFUSED)
    }
  }

  @Test func `a crash resets what peers have, and a restart serves again`() throws {
    let starts = Counter()
    let unwound = Flag()
    let world = World()
    try world.run {
      world.network.host("server") {
        _ = starts.next()
        defer { unwound.set() }
        try serveEcho()
      }
      try world.settle()
      let connection = try Connection.connect(host: "server", port: 7)
      try connection.write([1])
      #expect(try connection.read(upTo: 1) == [1])
      let reader = co_launch { try connection.read(upTo: 1) }
      try world.settle()
      world.network.crash("server")
      let error = #expect(throws: NetError.self) { try reader.join() }
      #expect(error?.code == ECONNRESET)
      #expect(throws: NetError.self) { try connection.write([2]) }
      try world.settle()
      #expect(unwound.isSet)
      #expect(throws: NetError.self) { try Connection.connect(host: "server", port: 7) }
      world.network.restart("server")
      try world.settle()
      let again = try Connection.connect(host: "server", port: 7)
      try again.write([3])
      #expect(try again.read(upTo: 1) == [3])
    }
    #expect(starts.next() == 3)
  }

  @Test func `a host that has crashed opens no socket while it unwinds, also if it lives again`() throws {
    for restarts in [false, true] {
      let heard = Cell<[UInt8]>([])
      let errors = Cell<[Int32]>([])
      let world = World()
      try world.run {
        world.network.host("server") {
          let listener = try Listener.bind(.any(port: 7))
          while true {
            let connection = try listener.accept()
            heard.value += try connection.read(upTo: 9)
          }
        }
        let lives = Counter()
        world.network.host("client") {
          if lives.next() == 2 { return }
          func fail(_ body: () throws -> Void) {
            do { try body() } catch let error as NetError { errors.value.append(error.code) } catch {}
          }
          defer {
            co_shield {
              fail {
                let connection = try Connection.connect(host: "server", port: 7)
                try connection.write([1])
                connection.close()
              }
              fail { _ = try Listener.bind(.any(port: 9)) }
              fail { _ = try DatagramSocket.bind(.any(port: 9)) }
              fail { _ = try Connection.pair() }
            }
          }
          try co_delay(.seconds(100))
        }
        try world.settle()
        if restarts { world.network.restart("client") } else { world.network.crash("client") }
        try world.settle()
      }
      #expect(heard.value == [])
      #expect(errors.value == [ENETDOWN, ENETDOWN, ENETDOWN, ENETDOWN], "\(errors.value)")
    }
  }

  @Test func `closing with unread bytes resets the peer, and so does writing to what is closed`() throws {
    let world = World()
    try world.run {
      let listener = try Listener.bind(.loopback(port: 0))
      let one = try Connection.connect(to: listener.address)
      let accepted = try listener.accept()
      try one.write([1])
      accepted.close()
      let error = #expect(throws: NetError.self) { try one.read(upTo: 1) }
      #expect(error?.code == ECONNRESET)

      let (two, other) = try Connection.pair()
      other.close()
      #expect(try two.read(upTo: 1).isEmpty)
      #expect(throws: NetError.self) { for _ in 0..<3 { try two.write([1]) } }
    }
  }

  @Test func `as many datagrams are lost as was set, and the same ones again with the same seed`() throws {
    func received(_ part: Double, seed: UInt64) throws -> [UInt8] {
      let world = World(seed: seed)
      world.network.setLoss(part, from: "body", to: "body")
      return try world.run {
        let (from, to) = (try DatagramSocket.bind(.any(port: 1)), try DatagramSocket.bind(.any(port: 2)))
        let here = try SocketAddress.resolve("body", port: 2)[0]
        for number in 0..<200 as Range<UInt8> { try from.send([number], to: here) }
        var numbers: [UInt8] = []
        var buffer: [UInt8] = [0]
        while true {
          do {
            try co_timeout(.seconds(1)) { _ = try buffer.withUnsafeMutableBytes { try to.receive(into: $0) } }
          } catch is TimeoutError { return numbers }
          numbers.append(buffer[0])
        }
      }
    }
    #expect(try received(0, seed: 1).count == 200)
    #expect(try received(1, seed: 1).isEmpty)
    let (one, again, other) = (try received(0.25, seed: 1), try received(0.25, seed: 1), try received(0.25, seed: 2))
    #expect((110...190).contains(one.count))
    #expect(one == again)
    #expect(one != other)
  }

  @Test func `a connected datagram socket hears its peer alone`() throws {
    let world = World()
    try world.run {
      world.network.host("server") {
        let socket = try DatagramSocket.bind(.any(port: 53))
        let stranger = try DatagramSocket.bind(.any(port: 54))
        var buffer = [UInt8](repeating: 0, count: 8)
        while true {
          let (count, sender) = try buffer.withUnsafeMutableBytes { try socket.receive(into: $0) }
          try stranger.send([0], to: sender)
          try socket.send(Array(buffer[..<count].reversed()), to: sender)
        }
      }
      try world.settle()
      let socket = try DatagramSocket.connect(to: try SocketAddress.resolve("server", port: 53)[0])
      var buffer = [UInt8](repeating: 0, count: 8)
      for bytes in [[1, 2], [3, 4, 5]] as [[UInt8]] {
        try socket.send(bytes)
        let (count, sender) = try buffer.withUnsafeMutableBytes { try socket.receive(into: $0) }
        #expect(Array(buffer[..<count]) == bytes.reversed() && sender == socket.peer)
      }
    }
  }

  @Test func `datagrams arrive with their sender, and are lost on a partition`() throws {
    let world = World()
    try world.run {
      world.network.host("server") {
        let socket = try DatagramSocket.bind(.any(port: 53))
        var buffer = [UInt8](repeating: 0, count: 8)
        while true {
          let (count, sender) = try buffer.withUnsafeMutableBytes { try socket.receive(into: $0) }
          try socket.send(Array(buffer[..<count].reversed()), to: sender)
        }
      }
      try world.settle()
      let socket = try DatagramSocket.bind(.any(port: 0))
      let server = try SocketAddress.resolve("server", port: 53)[0]
      func ask(_ bytes: [UInt8]) throws -> [UInt8] {
        try socket.send(bytes, to: server)
        var buffer = [UInt8](repeating: 0, count: 8)
        let (count, sender) = try co_timeout(.seconds(1)) {
          try buffer.withUnsafeMutableBytes { try socket.receive(into: $0) }
        }
        #expect(sender == server)
        return Array(buffer[..<count])
      }
      #expect(try ask([1, 2]) == [2, 1])
      world.network.partition(from: "body", to: "server")
      #expect(throws: TimeoutError.self) { try ask([3]) }
      world.network.heal(from: "body", to: "server")
      #expect(try ask([4, 5]) == [5, 4])
    }
  }

  @Test func `an error of a host fails the run`() throws {
    #expect(throws: Lost.self) {
      let world = World()
      try world.run {
        world.network.host("broken") { throw Lost() }
        try world.settle()
      }
    }
  }

  @Test func `a request that is repeated after a lost answer is found by a seed`() throws {
    let found = explore(.random()) {
      let deposits = Cell(0)
      let world = World.current!
      world.network.host("bank") {
        let listener = try Listener.bind(.any(port: 1))
        while true {
          let connection = try listener.accept()
          co_launch {
            guard try !connection.read(upTo: 1).isEmpty else { return }
            deposits.value += 1
            try connection.write([1])
          }
        }
      }
      world.network.setLatency(.milliseconds(1) ... .milliseconds(900), from: "bank", to: "body")
      try world.settle()
      for _ in 0..<5 {
        do {
          return try co_timeout(.seconds(1)) {
            let connection = try Connection.connect(host: "bank", port: 1)
            defer { connection.close() }
            try connection.write([1])
            _ = try connection.read(upTo: 1)
            if deposits.value != 1 { throw Broken("deposited \(deposits.value) times") }
          }
        } catch is TimeoutError {}
      }
    }
    let failure = try #require(found.failure)
    #expect(failure.error is Broken)
    let again = explore(.replay(failure.token)) { throw Lost() }
    #expect(again.failure?.error is Lost)
  }

  @Test func `selects wait for the sockets of a world`() throws {
    let world = World()
    try world.run {
      let listener = try Listener.bind(.loopback(port: 9))
      let client = co_launch {
        try co_delay(.seconds(1))
        let connection = try Connection.connect(to: listener.address)
        try co_delay(.seconds(1))
        try connection.write([5])
        connection.close()
      }
      let connection: Connection = try co_select { listener.onAccept { $0 } }
      #expect(world.now == .seconds(1))
      let seen: [UInt8] = try co_select { connection.onReadable { try connection.read(upTo: 1) } }
      #expect(seen == [5] && world.now == .seconds(2))
      try client.join()
    }
  }
}

@Sendable private func serveEcho() throws {
  let listener = try Listener.bind(.any(port: 7))
  while true {
    let connection = try listener.accept()
    co_launch {
      while case let bytes = try connection.read(upTo: 100), !bytes.isEmpty { try connection.write(bytes) }
      connection.close()
    }
  }
}

/// What is said of a network before its world runs.
@Suite(.timeLimit(.minutes(10)))
struct NetworkBeforeTests {
  @Test func `hosts and links may be described before the world runs, in any order`() throws {
    let world = World()
    world.network.setLatency(.milliseconds(5) ... .milliseconds(5), from: "body", to: "server")
    world.network.partition(from: "server", to: "body")
    world.network.host("server") { try serveEcho() }
    let seen = try world.run {
      try world.settle()
      #expect(throws: TimeoutError.self) {
        try co_timeout(.seconds(1)) { _ = try Connection.connect(host: "server", port: 7) }
      }
      world.network.heal(from: "server", to: "body")
      let connection = try Connection.connect(host: "server", port: 7)
      try connection.write([1])
      return try connection.read(upTo: 10)
    }
    #expect(seen == [1])
  }

  @Test func `a link to a host that is never added fails the run`() {
    let world = World()
    world.network.partition(from: "body", to: "sever")
    let error = #expect(throws: World.UnknownHostError.self) { try world.run {} }
    #expect(error?.name == "sever")
    #expect(error.map { "\($0)" } == "no host is called sever: add it with World.Network.host")
  }

  @Test func `the body's own error is thrown, not that of a link to a host that was never added`() {
    struct Wrong: Error {}
    let world = World()
    world.network.partition(from: "body", to: "sever")
    #expect(throws: Wrong.self) { try world.run { throw Wrong() } }
    let found = explore(.inOrder) {
      World.current!.network.partition(from: "body", to: "sever")
      throw Wrong()
    }
    #expect(found.failure?.error is Wrong)
  }

  @Test func `of several hosts that were never added, the first by name fails the run, in every process`() {
    let names = (10..<30).map { "host \($0)" }
    for isReversed in [false, true] {
      let world = World()
      for name in isReversed ? names.reversed() : names { world.network.partition(from: "body", to: name) }
      #expect(throws: World.UnknownHostError.self) { try world.run {} }
      let error = #expect(throws: World.UnknownHostError.self) {
        try World().run {
          for name in names { World.current?.network.partition(from: name, to: "body") }
        }
      }
      #expect(error?.name == names[0])
    }
  }

  @Test func `an error of a host comes before that of a link to a host that was never added`() {
    let world = World()
    world.network.partition(from: "body", to: "sever")
    world.network.host("broken") { throw Lost() }
    #expect(throws: Lost.self) { try world.run { try world.settle() } }
  }

  @Test func `a network is not changed from outside of its world while it runs`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let world = World()
      try world.run {
        let changed = DispatchSemaphore(value: 0)
        DispatchQueue.global().async {
          world.network.partition(from: "body", to: "body")
          changed.signal()
        }
        changed.wait()
      }
    }
    let said = result.map { String(decoding: $0.standardErrorContent, as: UTF8.self) } ?? ""
    #expect(said.contains("the network of a world that runs is changed inside of it"))
  }

  // MARK: Pieces

  /// A peer that writes `messages`, each in one write, and what the body reads of it, piece by piece.
  @Sendable private static func readPieces(of messages: [[UInt8]]) throws -> [[UInt8]] {
    World.current?.network.host("server") {
      let connection = try Listener.bind(.any(port: 7)).accept()
      for message in messages { try connection.write(message) }
      try connection.shutdownWrite()
      _ = try connection.read(upTo: 1)
    }
    try World.current?.settle()
    let connection = try Connection.connect(host: "server", port: 7)
    var pieces: [[UInt8]] = []
    while case let piece = try connection.read(upTo: 100), !piece.isEmpty { pieces.append(piece) }
    return pieces
  }

  @Test func `a write is read in one piece, in several, or with the next one, and nothing gets lost`() {
    let message = Array(0..<10) as [UInt8]
    let seen = Seen()
    let found = explore(.random(seeds: 300)) {
      let pieces = try Self.readPieces(of: [message, message])
      #expect(pieces.flatMap { $0 } == message + message)
      seen.insert("\(pieces.map(\.count))")
    }
    #expect(found.failure == nil)
    for expected in ["[20]", "[10, 10]", "[1, 19]", "[10, 1, 9]", "[10, 5, 5]", "[10, 9, 1]"] {
      #expect(seen.all.contains(expected), "\(seen.all.sorted())")
    }
  }

  @Test func `a reader that takes a piece for a message is found, and without need no piece is left in a failure`()
    throws
  {
    let body: @Sendable () throws -> Void = {
      if try Self.readPieces(of: [[1, 2, 3]]).first != [1, 2, 3] { throw Lost() }
    }
    #expect(explore(.inOrder, body).failure == nil)
    for strategy in [Exploration.Strategy.random(), .priorities(), .exhaustive(preemptions: 1)] {
      let failure = try #require(explore(strategy, body).failure)
      #expect(failure.error is Lost)
      #expect(failure.description.contains("0 switches, 1 fault,"), "\(failure)")
      #expect(explore(.replay(failure.token), body).failure?.error is Lost)
    }
    // Its schedules are those without preemptions.
    #expect(explore(.exhaustive(preemptions: 0), body).failure == nil)
    let failure = try #require(
      explore(.random()) {
        if try Self.readPieces(of: [[1, 2, 3]]).flatMap({ $0 }) == [1, 2, 3] { throw Lost() }
      }
      .failure
    )
    #expect(failure.description.contains("0 switches, 0 faults,"), "\(failure)")
  }
}

/// Texts that several runs of a body have seen.
private final class Seen: Sendable {
  private let texts = Mutex<Set<String>>([])
  func insert(_ text: String) { texts.withLock { _ = $0.insert(text) } }
  var all: Set<String> { texts.withLock { $0 } }
}
