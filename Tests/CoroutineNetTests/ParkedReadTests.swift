import CCoroutine
import CTestSupport
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// The ways to read that allocate the memory for the bytes themselves, and promise none while they wait.
@Suite("The memory of a read that waits", .timeLimit(.minutes(10)))
struct ParkedReadTests {
  private static let connections = 100
  private static let message = [UInt8](repeating: 10, count: 8)

  /// A coroutine that reads `message` and then waits for more, by one of the ways to read.
  private struct Route: Sendable {
    let name: String
    let read: @Sendable (Connection) throws -> Void

    init(_ name: String, _ read: @escaping @Sendable (Connection) throws -> Void) {
      self.name = name
      self.read = read
    }
  }

  /// The measure: the caller's buffer is on the caller's stack.
  private static let unbuffered = Route("read(into:)") { connection in
    try withUnsafeTemporaryAllocation(byteCount: 8, alignment: 1) { buffer in
      while try connection.read(into: UnsafeMutableRawBufferPointer(buffer)) > 0 {}
    }
  }

  private static let routes = [
    Route("read(upTo: 4096)") { while try !$0.read(upTo: 4_096).isEmpty {} },
    Route("read(upTo:) of a large count") { while try !$0.read(upTo: 1 << 30).isEmpty {} },
    Route("read(exactly:)") { connection in
      var reader = BufferedReader(connection)
      while true { _ = try reader.read(exactly: 8) }
    },
    Route("read(until:)") { connection in
      var reader = BufferedReader(connection)
      while try reader.read(until: 10, max: 100) != nil {}
    },
    Route("readLine") { connection in
      var reader = BufferedReader(connection)
      while try reader.readLine() != nil {}
    },
    Route("readInteger") { connection in
      var reader = BufferedReader(connection)
      while true { _ = try reader.readInteger(UInt64.self) }
    },
    Route("readAll") { connection in
      var reader = BufferedReader(connection)
      _ = try reader.read(exactly: 8)
      _ = try reader.readAll(max: 100)
    },
  ]

  /// The heap's bytes for each parked connection: before its first byte, and again when it has read a message.
  private static func bytes(of route: Route, isTCP: Bool) throws -> (fresh: Int, served: Int) {
    let before = Int(cts_heap_bytes())
    let pairs = try (0..<connections).map { _ in isTCP ? try tcpPair() : try Connection.pair() }
    let readers = pairs.map { pair in co_launch { try route.read(pair.0) } }
    func wait() throws {
      try until { pairs.allSatisfy { !Socket.isReadable($0.0.socket.number) && $0.0.socket.isAwaited(.reading) } }
    }
    try wait()
    let fresh = Int(cts_heap_bytes()) - before
    for pair in pairs { try pair.1.write(message) }
    try wait()
    let served = Int(cts_heap_bytes()) - before
    for pair in pairs { pair.1.close() }
    // The end of the stream ends some of them by an error.
    for reader in readers { _ = try? reader.join() }
    return (fresh / connections, served / connections)
  }

  private static func tcpPair() throws -> (Connection, Connection) {
    let pair = try TCPPair()
    pair.listener.close()
    return (pair.server, pair.client)
  }

  @Test func `no way to read holds a buffer while it waits for a first byte`() async {
    await #expect(processExitsWith: .success) {
      await inCoroutine {
        // A short read shows that a TCP socket is empty, so that a second wait comes without an attempt; that of a
        // local socket comes after one.
        for isTCP in [true, false] {
          // Everything that is allocated once is allocated by the first measure.
          for route in Self.routes + [Self.unbuffered] { _ = try Self.bytes(of: route, isTCP: isTCP) }
          let least = try Self.bytes(of: Self.unbuffered, isTCP: isTCP)
          for route in Self.routes {
            let seen = try Self.bytes(of: route, isTCP: isTCP)
            // A reader's own objects have 150 bytes; its smallest buffer would have 4,096.
            #expect(seen.fresh < least.fresh + 1_024, "\(route.name), TCP: \(isTCP), \(seen), \(least)")
            #expect(seen.served < least.served + 1_024, "\(route.name), TCP: \(isTCP), \(seen), \(least)")
          }
        }
      }
    }
  }

  private static let deeper = [
    Route("read(upTo:) with a deadline") { connection in
      while try !co_timeout(.seconds(3_600), { try connection.read(upTo: 4_096) }).isEmpty {}
    },
    Route("readLine with a deadline") { connection in
      var reader = BufferedReader(connection)
      while try co_timeout(.seconds(3_600), { try reader.readLine() }) != nil {}
    },
  ]

  /// The bytes between the control block of a parked coroutine and its saved stack pointer; whether both share a page.
  private static func depth(of job: Job<Void>) throws -> (bytes: Int, isOnePage: Bool) {
    guard let context = job.record.pointee.context else { return (0, false) }
    try until { context.pointee.parked.stack != nil }
    let (top, end) = (Int(bitPattern: context), Int(bitPattern: context.pointee.parked.stack))
    let page = Int(getpagesize())
    return (top - end, top / page == end / page)
  }

  /// Optimised alone: other builds have larger frames.
  ///
  /// The control block lies at one of several places, by the stack.
  @Test(.enabled(if: !_isDebugAssertConfiguration()))
  func `a read that waits needs one page of its stack, by each way and wherever the control block lies`() async {
    await #expect(processExitsWith: .success) {
      await inCoroutine {
        for route in Self.routes + Self.deeper {
          let pairs = try (0..<Self.connections).map { _ in try Self.tcpPair() }
          let readers = pairs.map { pair in co_launch { try route.read(pair.0) } }
          for pair in pairs { try pair.1.write(Self.message) }
          try until { pairs.allSatisfy { !Socket.isReadable($0.0.socket.number) && $0.0.socket.isAwaited(.reading) } }
          let depths = try readers.map(Self.depth)
          for depth in depths { #expect(depth.isOnePage, "\(route.name): \(depth.bytes) bytes") }
          for pair in pairs { pair.1.close() }
          // The end of the stream ends some of them by an error.
          for reader in readers { _ = try? reader.join() }
        }
      }
    }
  }
}
