import Coroutine
import Glibc
import Testing

@testable import CoroutineNet

/// What comes when nobody waits any more stays in the kernel, for the next call: the sockets' rows of the table in
/// the article CancellationAndTime.md.
@Suite("What comes too late for a socket's call", .timeLimit(.minutes(10)))
struct LateArrivalTests {
  enum Call: CaseIterable { case read, readInto, readLine, accept, receive }
  enum Way: CaseIterable { case cancel, deadline }

  @Test(arguments: Call.allCases, Way.allCases) func `stays for the next call`(_ call: Call, _ way: Way) async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      var buffer = [UInt8](repeating: 0, count: 8)
      switch call {
      case .read:
        try giveUp(way) {
          _ = try pair.server.read(upTo: 8)
        } when: {
          try pair.server.untilAwaited(.reading)
        }
        try pair.client.write([1, 2])
        #expect(try pair.server.read(upTo: 8) == [1, 2])
      case .readInto:
        try giveUp(way) {
          var buffer = [UInt8](repeating: 0, count: 8)
          _ = try buffer.withUnsafeMutableBytes { try pair.server.read(into: $0) }
        } when: {
          try pair.server.untilAwaited(.reading)
        }
        try pair.client.write([1, 2])
        let count = try buffer.withUnsafeMutableBytes { try pair.server.read(into: $0) }
        #expect(buffer.prefix(count) == [1, 2])
      case .readLine:
        // The reader keeps what it has: the first half of the line.
        try pair.client.write("one ".utf8)
        var reader = BufferedReader(pair.server)
        let error = failure { try co_timeout(.milliseconds(1)) { _ = try reader.readLine() } }
        #expect(error is TimeoutError)
        try pair.client.write("line\n".utf8)
        #expect(try reader.readLine() == "one line")
      case .accept:
        try giveUp(way) {
          _ = try pair.listener.accept()
        } when: {
          while !pair.listener.socket.isAwaited(.reading) { try co_yield() }
        }
        let client = try Connection.connect(to: pair.listener.address)
        #expect(try pair.listener.accept().remoteAddress == client.localAddress)
      case .receive:
        let socket = try DatagramSocket.bind(.loopback(port: 0))
        try giveUp(way) {
          _ = try receive(socket)
        } when: {
          try socket.untilAwaited(.reading)
        }
        try socket.send([1, 2], to: socket.address)
        #expect(try receive(socket) == [1, 2])
      }
    }
  }

  /// Lets a coroutine wait in `body` until `isThere` returns, and gives that wait up.
  private func giveUp(_ way: Way, _ body: @escaping @Sendable () throws -> Void, when isThere: () throws -> Void) throws
  {
    let job = co_launch { try way == .deadline ? co_timeout(.milliseconds(1), body) : body() }
    if way == .cancel {
      try isThere()
      job.cancel()
    }
    let error = failure { try job.join() }
    #expect(way == .cancel ? error is CancellationError : error is TimeoutError)
  }

  private func receive(_ socket: DatagramSocket) throws -> [UInt8] {
    var buffer = [UInt8](repeating: 0, count: 8)
    let count = try buffer.withUnsafeMutableBytes { try socket.receive(into: $0).count }
    return Array(buffer.prefix(count))
  }
}
