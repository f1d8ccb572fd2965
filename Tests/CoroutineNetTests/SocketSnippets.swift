import Coroutine
import CoroutineNet
import Glibc
import Testing

/// The code that the article SocketsAndServers.md shows, run.
///
/// scripts/lint holds each block of the page against this file, without regard to spaces and line breaks.
@Suite("What the page about sockets shows", .timeLimit(.minutes(10)))
struct SocketSnippets {
  @Test func `a handler ends while it is idle, hands over, and lingers`() async throws {
    try await onCoroutine {
      let (client, connection) = try Connection.pair()
      let handler = co_launch {
        var reader = BufferedReader(connection)
        while try reader.waitForMessage() {
          guard let line = try reader.readLine(max: 1_000) else { break }
          if line == "STARTTLS" { return try secure(connection, after: reader.takeBuffered()) }
          guard line.hasPrefix("GET ") else {
            try connection.write("no such command\n".utf8)
            return try connection.closeLingering()
          }
          try connection.write("\(line)\n".utf8)
        }
      }
      try client.write("GET it\nSTARTTLS\nsecret".utf8)
      var reader = BufferedReader(client)
      #expect(try handler.join() == ())
      let answers = [try reader.readLine(), try reader.readLine()]
      #expect(answers == ["GET it", "secret"])
    }
  }

  private func secure(_ connection: Connection, after bytes: [UInt8]) throws {
    var reader = BufferedReader(connection, startingWith: bytes)
    try connection.write(try reader.read(upTo: 100) + [10])
  }

  @Test func `a parser looks, consumes, and asks for more`() async throws {
    try await onCoroutine {
      let (client, connection) = try Connection.pair()
      let frame = co_launch {
        var reader = BufferedReader(connection)
        return try readFrame(&reader)
      }
      try client.write([0, 3, 7])
      try co_yield()
      try client.write([8, 9])
      #expect(try frame.join() == [7, 8, 9])
    }
  }

  private func readFrame(_ reader: inout BufferedReader) throws -> [UInt8]? {
    while true {
      // The number of bytes of the frame, or nil if its head is not complete.
      let length = reader.withBuffered { $0.count < 2 ? nil : Int($0[0]) << 8 | Int($0[1]) }
      if let length, reader.bufferedCount >= 2 + length {
        reader.consume(2)
        return try reader.read(exactly: length)
      }
      guard try reader.fill() else { return nil }
    }
  }

  @Test func `a server answers from the address that was asked`() async throws {
    try await onCoroutine {
      let socket = try DatagramSocket.bind(.any(port: 0))
      let server = co_launch {
        let room = UnsafeMutableRawBufferPointer.allocate(byteCount: 1_500, alignment: 1)
        defer { room.deallocate() }
        while true {
          let (count, client, asked) = try socket.receiveMessage(into: room)
          try socket.send(Array(room.prefix(count)), to: client, from: asked)
        }
      }
      let client = try DatagramSocket.bind(.loopback(port: 0))
      let target = try SocketAddress.ipv4("127.3.2.1", port: socket.address.port ?? 0)
      try client.send([1], to: target)
      try withUnsafeTemporaryAllocation(byteCount: 10, alignment: 1) { buffer in
        let (_, from) = try client.receive(into: UnsafeMutableRawBufferPointer(buffer))
        #expect(from == target)
      }
      server.cancel()
    }
  }

  @Test func `a server sheds load, and counts`() async throws {
    try await onCoroutine {
      let bound = Promise<[SocketAddress]>()
      let server = co_launch {
        let shedding = LoadShedding(target: .milliseconds(20)) { connection in
          try connection.write("busy, try later\n".utf8)
          try connection.closeLingering()
        }
        var options = Server.Options()
        options.maxConnections = 200
        options.shedding = shedding
        let addresses = [SocketAddress.loopback(port: 0), try .ipv4("127.0.0.2", port: 0)]
        try Server.run(addresses, options: options, onListening: { bound.fulfill($0) }) { try $0.write("hi\n".utf8) }
        print("\(shedding.admitted) served, \(shedding.refused) refused")
        #expect(shedding.admitted + shedding.refused == 2)
      }
      for address in try co_await(bound) {
        var reader = BufferedReader(try Connection.connect(to: address))
        let line = try reader.readLine()
        // Refused if the machine has stopped for 40 ms: the rule cannot tell that from load.
        #expect(["hi", "busy, try later"].contains(line))
      }
      server.cancel()
      try server.join()
    }
  }
}
