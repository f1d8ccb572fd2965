#if HTTP
import Coroutine
import CoroutineHTTP
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

@Suite("Slow clients, and floods", .timeLimit(.minutes(10)), .serialized)
struct FloodTests {
  @Test func `2,000 clients that send a byte now and then end, and others are served meanwhile`() async throws {
    let clients = setting("CO_HTTP_SLOW", 2_000)
    try await onCoroutine {
      try raiseDescriptorLimit(to: 2 * clients + 200)
      var options = HTTPServer.Options()
      // Time enough for the others on a busy machine.
      options.headTime = .seconds(5)
      try serving(options) { _, response in
        try response.send("ok")
      } _: { server in
        let connected = WaitGroup()
        connected.add(clients)
        let slow = (0..<clients).map { _ in
          co_launch { () -> [Int] in
            let client = try Connection.connect(to: server.address)
            defer { client.close() }
            try client.send("GET / HTTP/1.1\r\nHost: a\r\nX: ")
            connected.done()
            // A byte in each part of the limit, which does not extend it.
            let drip = co_launch {
              while (try? client.send("x")) != nil { try co_delay(.milliseconds(200)) }
            }
            defer { drip.cancel() }
            return statuses(try client.rest())
          }
        }
        try connected.wait()
        for _ in 0..<100 {
          let answer = try ask(server.address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
          #expect(statuses(answer) == [200])
        }
        for client in slow { #expect(try client.join() == [408]) }
        #expect(server.errors.current.count == clients)
      }
    }
  }

  /// The kinds of floods, each of 200 MiB.
  enum Flood: String, CaseIterable, Codable, Sendable {
    /// A declared body and a chunked one that the handler does not read.
    case unreadLength, unreadChunks
    /// A body that the handler reads in parts, and drops.
    case read
    /// A head, a line of a chunk, trailers, without end.
    case head, extensions, trailers
    /// Requests, whose client takes no answer.
    case pipelined
    /// A response of which the client takes nothing for a while.
    case response

    var start: String {
      switch self {
      case .unreadLength, .read:
        "POST /\(self) HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: \(200 << 20)\r\n\r\n"
      case .unreadChunks:
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\(String(200 << 20, radix: 16))\r\n"
      case .head: "GET / HTTP/1.1\r\nHost: a\r\nX: "
      case .extensions: "POST /read HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;"
      case .trailers: "POST /read HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "
      case .pipelined: ""
      case .response: "GET /response HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
      }
    }

    var piece: String {
      self == .pipelined
        ? String(repeating: "GET /pipelined HTTP/1.1\r\nHost: a\r\n\r\n", count: 1_000)
        : String(repeating: "x", count: 65_536)
    }
  }

  @Sendable static func handle(_ request: borrowing ServerRequest, _ response: inout ServerResponse) throws {
    switch request.path {
    case "/read":
      var count = 0
      try withUnsafeTemporaryAllocation(byteCount: 65_536, alignment: 16) { buffer in
        while case let part = try request.read(into: buffer), part > 0 { count += part }
      }
      try response.send("\(count)")
    case "/response":
      let part = [UInt8](repeating: 65, count: 65_536)
      for _ in 0..<(200 << 20) / part.count { try part.withUnsafeBytes { try response.write($0) } }
    default: try response.send("ok")
    }
  }

  /// In a process of its own, because other tests use memory as well.
  @Test(.enabled(if: !isSanitized, "a sanitizer keeps memory that was released"), arguments: Flood.allCases)
  func `a flood of 200 MiB leaves the memory flat`(_ flood: Flood) async throws {
    await #expect(processExitsWith: .success) { [flood] in
      try await onCoroutine {
        var options = HTTPServer.Options()
        options.bodySize = 1 << 30
        // A busy machine stops a client for seconds now and then.
        options.pause = .seconds(4)
        let server = try Running(options, FloodTests.handle)
        // What the first request needs is there.
        _ = try ask(server.address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        let before = residentBytes()
        let client = try Connection.connect(to: server.address)
        let writer = co_launch { () -> Int in
          let piece = Array(flood.piece.utf8)
          var sent = 0
          // The server may refuse it at any time.
          do {
            try client.send(flood.start)
            if flood == .response { return 0 }
            while sent < 200 << 20 {
              try client.write(piece)
              sent += piece.count
            }
          } catch is NetError {}
          return sent
        }
        var (most, received) = (before, 0)
        if flood == .pipelined {
          // It takes no answer until the server has given it up.
          _ = try writer.join()
        }
        do {
          while case let part = try client.read(upTo: 65_536), !part.isEmpty {
            received += part.count
            most = max(most, residentBytes())
          }
        } catch is NetError {}
        let sent = try writer.join()
        most = max(most, residentBytes())
        client.close()
        try server.stop()
        #expect(most - before < 24 << 20, "\(flood): \((most - before) >> 10) KiB after \(sent >> 20) MiB")
        if flood == .response { #expect(received > 200 << 20) }
        if flood == .read { #expect(sent >= 200 << 20) }
      }
    }
  }
}

/// The memory of this process.
func residentBytes() -> Int {
  guard let file = fopen("/proc/self/statm", "r") else { return 0 }
  defer { fclose(file) }
  var (total, resident) = (0, 0)
  return withUnsafeMutablePointer(to: &total) { total in
    withUnsafeMutablePointer(to: &resident) { resident in
      _ = withVaList([total, resident]) { vfscanf(file, "%ld %ld", $0) }
      return resident.pointee * 4_096
    }
  }
}
#endif
