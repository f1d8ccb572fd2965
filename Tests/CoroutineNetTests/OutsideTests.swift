import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// Everything that waits throws outside a coroutine, also where it would not have to wait.
@Suite("Sockets outside coroutines", .timeLimit(.minutes(10)))
struct OutsideTests {
  /// One verb, and what it is called with.
  struct Verb: Sendable, CustomTestStringConvertible {
    let name: String
    let call: @Sendable (Things) throws -> Void
    var testDescription: String { name }

    init(_ name: String, _ call: @escaping @Sendable (Things) throws -> Void) {
      self.name = name
      self.call = call
    }
  }

  /// Objects that are ready for every verb: a connection with a byte to read, a client in the backlog, a datagram.
  struct Things: Sendable {
    let connection: Connection
    let peer: Connection
    let listener: Listener
    let datagrams: DatagramSocket
    let file: Int32

    init() async throws {
      let (one, other) = try Connection.pair()
      let (listener, datagrams) = (try Listener.bind(.loopback(port: 0)), try DatagramSocket.bind(.loopback(port: 0)))
      try await onCoroutine {
        try other.write([1])
        _ = try Connection.connect(to: listener.address)
        try datagrams.send([1], to: datagrams.address)
      }
      (connection, peer) = (one, other)
      (self.listener, self.datagrams) = (listener, datagrams)
      file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC)
    }
  }

  private static let verbs: [Verb] = [
    Verb("connect") { _ = try Connection.connect(to: $0.listener.address) },
    Verb("connect by name") { _ = try Connection.connect(host: "localhost", port: $0.listener.address.port ?? 0) },
    Verb("connect by a literal") { _ = try Connection.connect(host: "127.0.0.1", port: $0.listener.address.port ?? 0) },
    Verb("resolve") { _ in _ = try SocketAddress.resolve("localhost", port: 1) },
    Verb("resolve a literal") { _ in _ = try SocketAddress.resolve("::1", port: 1) },
    Verb("accept") { _ = try $0.listener.accept() },
    Verb("read into a buffer") { things in
      _ = try withUnsafeTemporaryAllocation(byteCount: 1, alignment: 1) { try things.connection.read(into: $0) }
    },
    Verb("read") { _ = try $0.connection.read(upTo: 1) },
    Verb("write") { try $0.connection.write([1]) },
    Verb("write a buffer") { things in try [1 as UInt8].withUnsafeBytes { try things.connection.write($0) } },
    Verb("write pieces") { try $0.connection.write([[1], [2]]) },
    Verb("sendFile") { try $0.connection.sendFile($0.file, offset: 0, count: 1) },
    Verb("receive a datagram") { things in
      _ = try withUnsafeTemporaryAllocation(byteCount: 1, alignment: 1) { try things.datagrams.receive(into: $0) }
    },
    Verb("send a datagram") { try $0.datagrams.send([1], to: $0.datagrams.address) },
    Verb("read exactly") { things in
      var reader = BufferedReader(things.connection)
      _ = try reader.read(exactly: 1)
    },
    Verb("read until") { things in
      var reader = BufferedReader(things.connection)
      _ = try reader.read(until: 1, max: 1)
    },
    Verb("readLine") { things in
      var reader = BufferedReader(things.connection)
      _ = try reader.readLine()
    },
    Verb("readInteger") { things in
      var reader = BufferedReader(things.connection)
      _ = try reader.readInteger(UInt8.self)
    },
    Verb("readAll") { things in
      var reader = BufferedReader(things.connection)
      _ = try reader.readAll(max: 1)
    },
    Verb("select a connection") { things in try co_select { things.connection.onReadable {} } },
    Verb("select a listener") { things in try co_select { things.listener.onAccept { _ in } } },
    Verb("serve") { _ in try Server.run(.loopback(port: 0)) { _ in } },
  ]

  @Test(arguments: verbs) func `a verb that may wait throws notInCoroutine, and takes nothing`(_ verb: Verb)
    async throws
  {
    let things = try await Things()
    defer { close(things.file) }
    let error = Self.errorOnThread(verb, things)
    guard case .notInCoroutine? = error as? CoroutineError else {
      Issue.record("\(String(describing: error))")
      return
    }
    try await onCoroutine {
      // What was there is still there, and nothing more was sent.
      #expect(try things.connection.read(upTo: 2) == [1])
      _ = try things.listener.accept()
      var bytes: [UInt8] = [0, 0]
      #expect(try bytes.withUnsafeMutableBytes { try things.datagrams.receive(into: $0).count } == 1)
      #expect(!Socket.isReadable(things.peer.socket.number))
      #expect(!Socket.isReadable(things.listener.socket.number))
      #expect(!Socket.isReadable(things.datagrams.socket.number))
    }
  }

  /// Not async, as the code that makes this mistake.
  private static func errorOnThread(_ verb: Verb, _ things: Things) -> (any Error)? {
    failure { try verb.call(things) }
  }

  /// The functions of a reader, which holds what they are to return.
  private static let reads: [@Sendable (inout BufferedReader) throws -> Void] = [
    { _ = try $0.read(exactly: 1) }, { _ = try $0.read(until: 2, max: 9) }, { _ = try $0.readLine() },
    { _ = try $0.readInteger(UInt8.self) }, { _ = try $0.readAll(max: 9) }, { _ = try $0.read(upTo: 1) },
    { _ = try $0.read(upTo: 0) }, { _ = try $0.fill() }, { _ = try $0.waitForMessage() },
  ]

  @Test func `what a reader holds goes to no code outside a coroutine, and to no cancelled one`() async throws {
    let (one, other) = try Connection.pair()
    other.close()
    for read in Self.reads {
      let error = Self.errorOutside(read, one)
      guard case .notInCoroutine? = error as? CoroutineError else {
        Issue.record("\(String(describing: error))")
        continue
      }
      try await onCoroutine {
        let held = Locked(0)
        let job = co_launch(start: .immediate) {
          try? co_delay(.seconds(600))
          var reader = BufferedReader(one, startingWith: [1, 2, 10])
          defer { held.withLock { $0 = reader.bufferedCount } }
          try read(&reader)
        }
        job.cancel()
        #expect(throws: CancellationError.self) { try job.join() }
        #expect(held.current == 3)
      }
    }
  }

  private static func errorOutside(
    _ read: (inout BufferedReader) throws -> Void,
    _ connection: Connection
  ) -> (any Error)? {
    failure {
      var reader = BufferedReader(connection, startingWith: [1, 2, 10])
      try read(&reader)
    }
  }
}
