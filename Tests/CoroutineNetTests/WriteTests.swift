import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Writes", .timeLimit(.minutes(10)))
struct WriteTests {
  @Test func `a cancelled write leaves an exact count, and the peer has exactly that`() async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      // More than the buffers of both ends take; the length of the pattern divides no buffer's.
      var bytes = (0..<251).map { UInt8($0) }
      while bytes.count < 16_000_000 { bytes += bytes }
      let whole = bytes
      let writer = co_launch { try pair.client.write(whole) }
      try pair.client.untilAwaited(.writing)
      writer.cancel()
      #expect(throws: CancellationError.self) { try writer.join() }
      let count = pair.client.bytesWritten
      #expect(count > 0 && count < bytes.count)
      // The rest follows, from where it was.
      let reader = co_launch { try pair.server.readAll() }
      try pair.client.write(bytes[count...])
      try pair.client.shutdownWrite()
      #expect(try reader.join() == bytes)
      #expect(pair.client.bytesWritten == bytes.count)
    }
  }

  @Test func `an error in the middle of a write says how many bytes had gone`() async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      let writer = co_launch { netError { try pair.client.write([UInt8](repeating: 1, count: 50_000_000)) } }
      try pair.client.untilAwaited(.writing)
      pair.server.reset()
      let error = try #require(try writer.join())
      #expect(error.code == ECONNRESET || error.code == EPIPE)
      #expect(error.bytesWritten > 0 && error.bytesWritten == pair.client.bytesWritten)
      #expect("\(error)".contains("\(error.bytesWritten) bytes had been written"))
    }
  }

  @Test func `a close in the middle of a write says how many bytes had gone`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      let writer = co_launch { netError { try one.write([UInt8](repeating: 1, count: 5_000_000)) } }
      try one.untilAwaited(.writing)
      one.close()
      let error = try #require(try writer.join())
      #expect(error == .closed)
      #expect(error.bytesWritten == one.bytesWritten)
      #expect(try other.readAll().count == error.bytesWritten)
    }
  }

  @Test(arguments: [1, 3, 64, 1_024, 1_025, 3_000])
  func `many buffers arrive as one stream`(_ count: Int) async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      let pattern = (0..<3_000).map { UInt8(truncatingIfNeeded: $0 ^ $0 >> 8) }
      let buffers = (0..<count).map { index in Array(pattern[(index % 1_000)...].prefix(index * 37 % 2_000)) }
      let reader = co_launch { try other.readAll() }
      try one.write(buffers)
      try one.shutdownWrite()
      #expect(try reader.join() == buffers.flatMap { $0 })
    }
  }

  @Test func `buffers that go in pieces, through empty ones, arrive whole`() async throws {
    let run = Run()
    try await onCoroutine {
      var random = run.random(0)
      for _ in 0..<run.rounds(20) {
        let (one, other) = try Connection.pair()
        let buffers = (0..<Int.random(in: 1...50, using: &random)).map { _ in
          let count = Bool.random(using: &random) ? Int.random(in: 0...200_000, using: &random) : 0
          return [UInt8](repeating: UInt8.random(in: 0...255, using: &random), count: count)
        }
        let reader = co_launch { try other.readAll() }
        try one.write(buffers)
        try one.shutdownWrite()
        #expect(try reader.join() == buffers.flatMap { $0 }, "\(run.replay)")
      }
    }
  }

  @Test func `any sequence of bytes can be written`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      try one.write("text".utf8)
      try one.write((0..<5).lazy.map { UInt8($0) })
      try one.write([9, 8, 7][1...])
      try [UInt8](repeating: 3, count: 2).withUnsafeBytes { try one.write($0) }
      try one.shutdownWrite()
      #expect(try other.readAll() == Array("text".utf8) + [0, 1, 2, 3, 4, 8, 7, 3, 3])
    }
  }

  @Test func `a sequence that fails is the error of the write, and no byte of it is sent`() async throws {
    struct Oops: Error {}
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      #expect(throws: Oops.self) {
        try one.write(
          co_sequence(of: UInt8.self) {
            try $0(1)
            throw Oops()
          }
        )
      }
      try one.write([2])
      #expect(try other.read(upTo: 10) == [2])
    }
  }

  @Test func `writing to a peer that has gone is EPIPE, and no signal ends the process`() async {
    await #expect(processExitsWith: .success) {
      signal(SIGPIPE, SIG_DFL)
      try await co_launch {
        let path = freshPath("pipe")
        let file = open(path, O_RDWR | O_CREAT, 0o600)
        defer { unlink(path) }
        _ = [UInt8](repeating: 1, count: 100).withUnsafeBytes { Glibc.write(file, $0.baseAddress, $0.count) }
        let (one, other) = try Connection.pair()
        other.close()
        #expect(code { try one.write([1]) } == EPIPE)
        #expect(code { try one.write([[1], [2]]) } == EPIPE)
        #expect(code { try one.sendFile(file, offset: 0, count: 100) } == EPIPE)
        try Self.sendToThoseThatHaveLeft(file)
        // None is left pending either.
        var pending = sigset_t()
        sigpending(&pending)
        #expect(sigismember(&pending, SIGPIPE) == 0)
      }
      .value
    }
  }

  /// A transfer that fails after a part raises the signal as well, and returns the part.
  private static func sendToThoseThatHaveLeft(_ file: Int32) throws {
    let large = 4 << 20
    ftruncate(file, large)
    let listener = try Listener.bind(.loopback(port: 0))
    for _ in 0..<100 {
      let client = try Connection.connect(to: listener.address)
      let sender = try listener.accept()
      client.close()
      for _ in 0..<5 where (try? sender.sendFile(file, offset: 0, count: large)) == nil { break }
      sender.close()
    }
  }

  @Test func `a file is sent from its offset, and its end is an error that counts`() async throws {
    try await onCoroutine {
      let path = freshPath("file")
      let file = open(path, O_RDWR | O_CREAT, 0o600)
      defer {
        close(file)
        unlink(path)
      }
      let content = (0..<1_000_000).map { UInt8(truncatingIfNeeded: $0 / 11) }
      _ = content.withUnsafeBytes { Glibc.write(file, $0.baseAddress, $0.count) }
      let position = lseek(file, 0, SEEK_CUR)
      for isTCP in [true, false] {
        let tcp = try TCPPair()
        let local = try Connection.pair()
        let (one, other) = isTCP ? (tcp.client, tcp.server) : local
        let reader = co_launch { try other.readAll() }
        try one.sendFile(file, offset: 5, count: 900_000)
        try one.sendFile(file, offset: 0, count: 0)
        let error = try #require(netError { try one.sendFile(file, offset: 999_990, count: 100) })
        #expect(error == .endOfStream)
        #expect(error.bytesWritten == 10)
        try one.shutdownWrite()
        #expect(try reader.join() == Array(content[5..<900_005]) + Array(content[999_990...]))
      }
      #expect(lseek(file, 0, SEEK_CUR) == position)
    }
  }

  @Test func `what cannot be sent as a file is an error`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      #expect(code { try one.sendFile(-1, offset: 0, count: 1) } == EBADF)
      #expect(code { try one.sendFile(0, offset: -1, count: 1) } == EINVAL)
      #expect(code { try one.sendFile(0, offset: 0, count: -1) } == EINVAL)
      #expect(code { try one.sendFile(0, offset: .max, count: 1) } == EINVAL)
      #expect(
        other.withUnsafeDescriptor { number in (code { try one.sendFile(number, offset: 0, count: 1) } ?? 0) != 0 }
      )
      // The connection is none the worse.
      try one.write([1])
      #expect(try other.read(upTo: 9) == [1])
    }
  }
}
