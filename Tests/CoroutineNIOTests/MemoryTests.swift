#if NIO
import CTestSupport
import Coroutine
import CoroutineNIO
import Glibc
import NIOCore
import NIOPosix
import Testing

/// The memory beside a slow reader, on either side.
///
/// Each test has a process of its own, whose heap nothing else uses. The peer of the coroutine is the test itself, at
/// the other end of a pair of sockets. So it knows what was sent and taken at each moment, and no time matters.
@Suite("The memory of channels with slow readers", .timeLimit(.minutes(10)))
struct MemoryTests {
  private static let part = 64 << 10
  private static let total = 64 << 20
  /// More than the system's buffers, NIO's reads of one turn and its pending writes hold together.
  private static let most = 1 << 20

  @Test func `a coroutine that reads slowly keeps memory flat, however much a fast peer sends`() async {
    await #expect(processExitsWith: .success) {
      try await onWorker { group in
        let peer = try Peer(group)
        let (permits, sizes) = (Coroutine.Channel<Void>(0), Coroutine.Channel<Int>(0))
        let reader = co_launch(on: peer.connection.channel.eventLoop) {
          while try permits.receive() != nil {
            guard let bytes = try peer.connection.read() else { break }
            try sizes.send(bytes.readableBytes)
          }
        }
        var heap = Growth()
        var (sent, taken, between) = (0, 0, 0)
        while taken < Self.total {
          // All that the system takes, and then one value more for the coroutine.
          sent += peer.fill(upTo: 2 * Self.total)
          between = max(between, sent - taken)
          try permits.send(())
          taken += try sizes.receive() ?? 0
          if taken > 2 << 20 { heap.note() }
        }
        #expect(between < Self.most, "\(between) bytes between them")
        #expect(heap.bytes < Self.most, "\(heap.bytes) bytes of the heap")
        permits.close()
        try reader.join()
        try peer.end()
      }
    }
  }

  @Test func `a coroutine that writes fast keeps memory flat, however slowly its peer reads`() async {
    await #expect(processExitsWith: .success) {
      try await onWorker { group in
        let peer = try Peer(group)
        let loop = peer.connection.channel.eventLoop
        let written = Locked(0)
        let writer = co_launch(on: loop) {
          let bytes = ByteBuffer(repeating: 1, count: Self.part)
          while written.current < Self.total {
            try peer.connection.write(bytes)
            written.withLock { $0 += bytes.readableBytes }
          }
        }
        var heap = Growth()
        var (taken, between) = (0, 0)
        while taken < Self.total {
          // The loop has turns enough to write all that it may.
          for _ in 0..<10 { try co_await(loop.submit {}) }
          between = max(between, written.current - taken)
          if taken > 2 << 20 { heap.note() }
          taken += try peer.take(Self.part)
        }
        #expect(between < Self.most, "\(between) bytes between them")
        #expect(heap.bytes < Self.most, "\(heap.bytes) bytes of the heap")
        try writer.join()
        try peer.end()
      }
    }
  }
}

/// A connection of a loop, and the descriptor at its other end.
private struct Peer: Sendable {
  let connection: Bytes
  private let descriptor: Int32

  init(_ group: any EventLoopGroup) throws {
    var ends: [Int32] = [0, 0]
    precondition(socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue), 0, &ends) == 0)
    descriptor = ends[1]
    let wrapped = Locked<Bytes?>(nil)
    _ = try co_await(
      ClientBootstrap(group: group).channelInitializer { channel in
        channel.eventLoop.makeCompletedFuture {
          let connection = try Bytes(wrapping: channel)
          wrapped.withLock { $0 = connection }
        }
      }.withConnectedSocket(ends[0])
    )
    connection = wrapped.current!
  }

  /// Sends until the system takes no more, `limit` bytes at most; returns their number.
  func fill(upTo limit: Int) -> Int {
    let bytes = [UInt8](repeating: 1, count: 64 << 10)
    var sent = 0
    while sent < limit {
      let count = send(descriptor, bytes, bytes.count, Int32(MSG_NOSIGNAL))
      if count < 0 { return sent }
      sent += count
    }
    return sent
  }

  /// Waits for bytes, and takes `limit` of them at most; returns their number.
  func take(_ limit: Int) throws -> Int {
    try co_untilReadable(descriptor)
    var bytes = [UInt8](repeating: 0, count: limit)
    return max(0, recv(descriptor, &bytes, limit, 0))
  }

  func end() throws {
    close(descriptor)
    let connection = connection
    try co_launch(on: connection.channel.eventLoop) { try connection.close() }.join()
  }
}

/// How far the heap has grown above its smallest size.
private struct Growth {
  private var least = Int.max
  private(set) var bytes = 0

  mutating func note() {
    let now = Int(cts_heap_bytes())
    least = min(least, now)
    bytes = max(bytes, now - least)
  }
}
#endif
