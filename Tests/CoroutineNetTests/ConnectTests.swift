import CoroutineTesting
import Dispatch
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Connecting", .timeLimit(.minutes(10)))
struct ConnectTests {
  @Test func `nobody listening is ECONNREFUSED with the address`() async throws {
    try await onCoroutine {
      try withSilentPort { port in
        let error = try #require(netError { try Connection.connect(to: .loopback(port: port)) })
        #expect(error.code == ECONNREFUSED)
        #expect("\(error)".contains("connecting to 127.0.0.1:\(port)"))
      }
      #expect(code { try Connection.connect(to: .unix("/no/such/socket")) } == ENOENT)
    }
  }

  @Test func `a connection by name finds the listener, whichever kind of address it has`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      let client = try Connection.connect(host: "localhost", port: try #require(listener.address.port))
      let server = try listener.accept()
      try client.write([1])
      #expect(try server.read(upTo: 1) == [1])
      try withSilentPort { port in
        #expect(code { try Connection.connect(host: "localhost", port: port) } == ECONNREFUSED)
      }
    }
  }

  /// Literal addresses that all lead to the loopback.
  private static let loopbacks = [
    "127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0",
  ]

  private func address(_ host: String, port: UInt16) throws -> SocketAddress {
    try (try? .ipv4(host, port: port)) ?? .ipv6(host, port: port)
  }

  @Test(arguments: loopbacks)
  func `a socket that has connected with itself is refused, whichever address was asked for`(_ host: String)
    async throws
  {
    try await onCoroutine {
      let wanted = try address(host, port: 0)
      let socket = try Socket.make(wanted, isStream: true, "binding")
      // What the system does at random: the socket's own port is the one that is asked for.
      _ = try Socket.bind(socket, wanted, unlinks: false)
      let port = try #require(SocketAddress.local(of: socket.number)?.port)
      let error = try #require(
        netError { _ = try Connection.connect(socket, to: wanted.with(port: port), "connecting to") }
      )
      #expect(error.code == ECONNREFUSED)
      #expect(error.address == wanted.with(port: port))
    }
  }

  @Test(arguments: loopbacks)
  func `the remote address is the peer's, whichever address was asked for`(_ host: String) async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.any(port: 0))
      let port = try #require(listener.address.port)
      let client = try Connection.connect(to: try address(host, port: port))
      let server = try listener.accept()
      #expect(client.remoteAddress == server.localAddress)
      #expect(client.remoteAddress == client.remoteAddress.canonical)
      #expect(!["0.0.0.0", "::"].contains(client.remoteAddress.host))
      #expect(client.localAddress == server.remoteAddress)
    }
  }

  @Test(arguments: loopbacks.filter { $0 != "127.0.0.2" })
  func `the remote address of a simulated connection is the peer's`(_ host: String) throws {
    try World().run {
      let listener = try Listener.bind(.any(port: 7))
      let client = try Connection.connect(to: try address(host, port: 7))
      _ = try listener.accept()
      #expect(["127.0.0.1", "::1"].contains(client.remoteAddress.host))
    }
  }

  @Test func `the kinds of addresses alternate`() throws {
    let v4 = try (1...3).map { try SocketAddress.ipv4("192.0.2.\($0)", port: 1) }
    let v6 = try (1...2).map { try SocketAddress.ipv6("2001:db8::\($0)", port: 1) }
    #expect(ConnectRace.alternatingFamilies(v6 + v4) == [v6[0], v4[0], v6[1], v4[1], v4[2]])
    #expect(ConnectRace.alternatingFamilies(v4 + v6) == [v4[0], v6[0], v4[1], v6[1], v4[2]])
    #expect(ConnectRace.alternatingFamilies([]) == [])
  }

  /// What an attempt of a simulated race does.
  private enum Attempt: Sendable {
    case succeeds(after: Duration)
    case fails(after: Duration)
  }

  /// Runs a race under virtual time; returns its outcome, its length in milliseconds, and the beginnings of the
  /// attempts.
  private func race(_ attempts: [Attempt]) throws -> (outcome: String, length: UInt64, begun: [String], ended: Int) {
    let world = World()
    let ended = Locked(0)
    let begun = Locked<[String]>([])
    let addresses = (0..<attempts.count).map { SocketAddress.loopback(port: UInt16($0)) }
    return try world.run {
      let start = world.now
      @Sendable func elapsed() -> UInt64 { UInt64((world.now - start) / .milliseconds(1)) }
      var outcome = ""
      do {
        let winner = try ConnectRace.first(of: addresses, apart: .milliseconds(250)) { address in
          let index = Int(address.port ?? 0)
          begun.withLock { $0.append("\(index) at \(elapsed())") }
          defer { ended.withLock { $0 += 1 } }
          switch attempts[index] {
          case .succeeds(let time): try co_delay(time)
          case .fails(let time):
            try co_delay(time)
            throw NetError(code: ECONNREFUSED, "connecting to", address)
          }
          return index
        }
        outcome = "\(winner)"
      } catch let error as NetError {
        outcome = "error \(error.address?.port ?? 99)"
      }
      return (outcome, elapsed(), begun.current, ended.current)
    }
  }

  @Test func `attempts begin 250 ms apart, and the first success wins`() async throws {
    let result = try race([
      .succeeds(after: .seconds(60)), .succeeds(after: .seconds(60)), .succeeds(after: .milliseconds(100)),
      .succeeds(after: .milliseconds(1)),
    ])
    #expect(result.outcome == "2")
    #expect(result.length == 600)
    #expect(result.begun == ["0 at 0", "1 at 250", "2 at 500"])
    // The others were given up, and have ended.
    #expect(result.ended == 3)
  }

  @Test func `a failure begins the next attempt at once`() async throws {
    let result = try race([
      .fails(after: .milliseconds(10)), .fails(after: .milliseconds(20)), .succeeds(after: .milliseconds(5)),
    ])
    #expect(result.outcome == "2")
    #expect(result.length == 35)
    #expect(result.begun == ["0 at 0", "1 at 10", "2 at 30"])
  }

  @Test func `if all fail, the first address's error is thrown`() async throws {
    let result = try race([.fails(after: .milliseconds(500)), .fails(after: .milliseconds(10))])
    #expect(result.outcome == "error 0")
    #expect(result.begun == ["0 at 0", "1 at 250"])
    #expect(result.length == 500)
  }

  @Test func `a cancelled race gives every attempt up`() async throws {
    try await onCoroutine {
      let ended = Locked(0)
      let begun = Locked(0)
      let job = co_launch {
        try ConnectRace.first(of: [.loopback(port: 1), .loopback(port: 2)], apart: .milliseconds(1)) { _ in
          begun.withLock { $0 += 1 }
          defer { ended.withLock { $0 += 1 } }
          try co_delay(.seconds(1_000))
        }
      }
      try until { begun.current == 2 }
      job.cancel()
      #expect(throws: CancellationError.self) { try job.join() }
      #expect(ended.current == 2)
    }
  }

  /// A result that notes its release.
  private final class Noted: Sendable {
    let released: Locked<[Int]>
    let index: Int
    init(_ index: Int, _ released: Locked<[Int]>) { (self.index, self.released) = (index, released) }
    deinit { released.withLock { $0.append(index) } }
  }

  @Test func `attempts that succeed after the first one are released, so that their connections are closed`() throws {
    for seed in 0..<20 as Range<UInt64> {
      let (made, released) = (Locked(0), Locked<[Int]>([]))
      let addresses = (0..<4).map { SocketAddress.loopback(port: UInt16($0)) }
      let winner = try World(seed: seed).run {
        let winner = try ConnectRace.first(of: addresses, apart: .milliseconds(250)) { address in
          let index = Int(address.port ?? 0)
          // The first three end at the same time, the last one later, and none of them sees the cancellation.
          try co_shield { try co_delay(.milliseconds(index == 3 ? 2_000 : 1_000 - 250 * index)) }
          made.withLock { $0 += 1 }
          return Noted(index, released)
        }
        #expect(made.current == 4, "seed \(seed)")
        return winner
      }
      #expect(Set(released.current) == Set(0..<4).subtracting([winner.index]), "seed \(seed)")
      #expect(released.current.count == 3, "seed \(seed)")
    }
  }

  @Test func `a wait for a socket of the real world is declared in a world`() throws {
    let result = try World().run {
      let (one, other) = try World.outside { try Connection.pair() }
      let reader = co_launch { try World.outside { try one.read(upTo: 5) } }
      // Not a delay: time stands still while a coroutine waits for the real world.
      try co_yield()
      DispatchQueue(label: "sender").async {
        while !one.socket.isAwaited(.reading) { sched_yield() }
        other.withUnsafeDescriptor { number in
          var byte: UInt8 = 9
          Glibc.send(number, &byte, 1, 0)
        }
      }
      return try reader.join()
    }
    #expect(result == [9])
  }
}
