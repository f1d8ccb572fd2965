import CoroutineTesting
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Load shedding", .timeLimit(.minutes(10)))
struct SheddingTests {
  /// The decisions about pieces of work, each a time in milliseconds and an age at that time, in virtual time.
  private func decisions(
    _ rule: LoadShedding,
    _ work: [(at: Int, age: Int)]
  ) throws -> [Bool] {
    try World(seed: 1).run {
      var now = 0
      return try work.map { piece in
        try co_delay(.milliseconds(piece.at - now))
        now = piece.at
        return rule.admit(after: .milliseconds(piece.age))
      }
    }
  }

  @Test func `a burst that ends within an interval refuses nothing`() throws {
    let rule = LoadShedding(target: .milliseconds(5), interval: .milliseconds(100))
    let work = (1...300).map { (at: $0, age: $0 % 100 == 50 ? 4 : 80) }
    #expect(try decisions(rule, work).allSatisfy { $0 })
    #expect(rule.admitted == 300 && rule.refused == 0 && !rule.isOverloaded)
  }

  @Test func `a queue that was too old for a whole interval refuses what is older than twice the target`() throws {
    let rule = LoadShedding(target: .milliseconds(5), interval: .milliseconds(100))
    // The first interval begins with the first piece, at 1 ms. It ends with the one at 101 ms, which is decided by it.
    let decided = try decisions(rule, (1...200).map { (at: $0, age: $0 % 2 == 0 ? 10 : 11) })
    #expect(decided.prefix(100).allSatisfy { $0 })
    #expect(decided[100...].enumerated().allSatisfy { $0.element == ($0.offset % 2 == 1) })
    #expect(rule.refused == 50 && rule.admitted == 150 && rule.isOverloaded)
  }

  @Test func `one young piece of work ends the overload with its interval`() throws {
    let rule = LoadShedding(target: .milliseconds(5), interval: .milliseconds(100))
    let decided = try decisions(rule, (1...400).map { (at: $0, age: $0 == 150 ? 5 : 50) })
    // Overloaded from 101 to 200, but for the young piece; admitted again from 201, and refused from 301 on.
    #expect(decided.prefix(100).allSatisfy { $0 } && decided[149])
    #expect(decided[100..<149].allSatisfy { !$0 } && decided[150..<200].allSatisfy { !$0 })
    #expect(decided[200..<300].allSatisfy { $0 } && decided[300...].allSatisfy { !$0 })
  }

  @Test func `a burst after a time without work is no standing queue`() throws {
    let rule = LoadShedding(target: .milliseconds(5), interval: .milliseconds(100))
    // Late work ends the interval before the quiet time; the burst has waited for less than that time.
    let work = (1...3).map { (at: $0, age: 50) } + (0..<20).map { (at: 2_000 + $0, age: 30 + $0) }
    #expect(try decisions(rule, work).allSatisfy { $0 })
    #expect(rule.refused == 0 && !rule.isOverloaded)
    // Work that is done slowly is a standing queue, also if no interval has two pieces.
    let slow = LoadShedding(target: .milliseconds(5), interval: .milliseconds(100))
    let decided = try decisions(slow, (1...10).map { (at: $0 * 200, age: $0 * 190) })
    #expect(decided.dropFirst(3).allSatisfy { !$0 })
  }

  @Test func `extreme durations neither trap nor refuse`() {
    for rule in [
      LoadShedding(target: .seconds(1 << 62), interval: .seconds(1 << 62)),
      LoadShedding(target: .zero, interval: .zero),
      LoadShedding(target: .seconds(-1), interval: .seconds(-1)),
      LoadShedding(target: Duration(secondsComponent: .max, attosecondsComponent: 0), interval: .zero),
      LoadShedding(target: .zero, interval: Duration(secondsComponent: .min, attosecondsComponent: 0)),
    ] {
      for seconds in [0, -1, 1 << 62, .max, Int64.min] {
        _ = rule.admit(after: Duration(secondsComponent: seconds, attosecondsComponent: 0))
      }
      #expect(rule.admitted + rule.refused == 5)
    }
  }

  @Test func `callers on many threads lose no count`() async throws {
    let rule = LoadShedding(target: .zero, interval: .zero)
    try await onCoroutine {
      try co_scope { scope in
        for _ in 0..<8 {
          scope.launch { for index in 0..<5_000 { _ = rule.admit(after: .nanoseconds(index)) } }
        }
      }
    }
    #expect(rule.admitted + rule.refused == 40_000)
  }

  // MARK: In a server

  /// A server at its limit, with work for twice the time that it has; returns how long each served client has waited.
  private func overload(
    _ rule: LoadShedding?,
    seed: UInt64
  ) throws -> (served: [Duration], refused: Int, dots: [Picture.Dot]) {
    let world = World(seed: seed)
    return try world.run {
      var options = Server.Options()
      options.maxConnections = 1
      options.shedding = rule
      options.listener.backlog = 10_000
      let address = SocketAddress.loopback(port: 7)
      let server = co_launch { [options] in
        try Server.run(address, options: options) { connection in
          try co_delay(.milliseconds(10))
          try connection.write([1])
        }
      }
      try world.settle()
      let served = Locked<[Duration]>([])
      let refused = Locked(0)
      let dots = Locked<[Picture.Dot]>([])
      let first = world.now
      try co_scope { scope in
        for index in 0..<400 {
          scope.launch {
            try co_delay(.milliseconds(5 * index))
            let start = world.now
            let isServed = try Connection.connect(to: address).readAll() == [1]
            let dot = Picture.Dot(at: start - first, waited: world.now - start, isServed: isServed)
            dots.withLock { $0.append(dot) }
            if isServed { served.withLock { $0.append(world.now - start) } } else { refused.withLock { $0 += 1 } }
          }
        }
      }
      server.cancel()
      try server.join()
      return (served.current, refused.current, dots.current)
    }
  }

  @Test func `an overloaded server serves as much as before, and in time`() throws {
    let without = try overload(nil, seed: 1)
    #expect(without.refused == 0 && without.served.max() ?? .zero >= .seconds(1.9))
    let rule = LoadShedding(target: .milliseconds(20), interval: .milliseconds(100))
    let with = try overload(rule, seed: 1)
    #expect(with.refused == rule.refused && rule.admitted == with.served.count)
    #expect(with.served.count + with.refused == 400)
    // Half of the work is all that there is time for. What was admitted later than the first interval was young.
    #expect(with.served.count >= 190, "\(with.served.count)")
    #expect(with.served.max() ?? .zero <= .milliseconds(160), "\(with.served.max() ?? .zero)")
  }

  @Test(.enabled(if: getenv("CO_DRAW") != nil, "draws the picture of SocketsAndServers.md where CO_DRAW says"))
  func `the picture of the page is drawn`() throws {
    let path = getenv("CO_DRAW").map { String(cString: $0) } ?? ""
    let rule = LoadShedding(target: .milliseconds(20), interval: .milliseconds(100))
    let text = Picture.draw(try overload(nil, seed: 1).dots, try overload(rule, seed: 1).dots)
    try Peer.write(Array(text.utf8), to: path)
  }

  @Test func `a refused connection gets the server's own answer`() async throws {
    try await onCoroutine {
      let rule = LoadShedding(target: .zero, interval: .zero) { connection in
        try connection.write("busy".utf8)
        try connection.closeLingering()
      }
      let listener = try Listener.bind(.loopback(port: 0))
      let client = try Connection.connect(to: listener.address)
      // The client waits in the backlog while the rule gets overloaded, by an age that no work had.
      // The kernel's clock for its age may have 10 ms.
      try co_delay(.milliseconds(50))
      for _ in 0..<3 { _ = rule.admit(after: .seconds(1)) }
      #expect(rule.isOverloaded)
      var options = Server.Options()
      options.shedding = rule
      let server = co_launch { [options] in
        try Server.run(listeners: [listener], options: options) { try $0.write("served".utf8) }
      }
      #expect(String(decoding: try client.readAll(), as: UTF8.self) == "busy" && rule.refused == 3)
      server.cancel()
      try server.join()
    }
  }

  @Test func `the time in the backlog counts`() async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      let client = try Connection.connect(to: pair.listener.address)
      try client.write([1])
      // The server's end is there a moment after the client's, at the latest with the byte.
      try until { Socket.isReadable(pair.listener.socket.number) }
      let connection = try #require(try pair.listener.acceptNow())
      // The kernel's clock for this has milliseconds. Each age begins anew, so it has only what the kernel says.
      try until { ConnectionAge(of: connection).now >= .milliseconds(3) }
    }
  }
}
