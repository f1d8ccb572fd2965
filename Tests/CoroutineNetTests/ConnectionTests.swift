import Dispatch
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Connections", .timeLimit(.minutes(10)))
struct ConnectionTests {
  @Test func `bytes arrive in order and whole, in both directions`() async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      let sent = (0..<1_000_000).map { UInt8(truncatingIfNeeded: $0 &* 31 >> 3) }
      let echo = co_launch {
        while true {
          let bytes = try pair.server.read(upTo: 10_000)
          if bytes.isEmpty { break }
          try pair.server.write(bytes)
        }
        try pair.server.shutdownWrite()
      }
      let reader = co_launch { try pair.client.readAll() }
      try pair.client.write(sent)
      try pair.client.shutdownWrite()
      #expect(try reader.join() == sent)
      try echo.join()
    }
  }

  @Test func `a read returns what is there, and 0 at the end, again and again`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      try one.write([1, 2, 3])
      try withUnsafeTemporaryAllocation(byteCount: 100, alignment: 1) { buffer in
        #expect(try other.read(into: buffer) == 3)
        #expect(Array(buffer.prefix(3)) == [1, 2, 3])
        try one.shutdownWrite()
        for _ in 0..<3 { #expect(try other.read(into: buffer) == 0) }
      }
      #expect(try other.read(upTo: 5).isEmpty)
    }
  }

  @Test func `an empty read or write moves nothing, and sees a close`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      #expect(try one.read(into: UnsafeMutableRawBufferPointer(start: nil, count: 0)) == 0)
      #expect(try one.read(upTo: 0).isEmpty)
      try one.write([UInt8]())
      try one.write([[], []])
      one.close()
      #expect(throws: NetError.closed) { try one.read(upTo: 0) }
      #expect(throws: NetError.closed) { try one.write([UInt8]()) }
      #expect(try other.read(upTo: 1).isEmpty)
    }
  }

  @Test func `one direction ends while the other goes on`() async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      try pair.client.write(Array("question".utf8))
      try pair.client.shutdownWrite()
      try pair.client.shutdownWrite()
      #expect(try pair.server.readAll() == Array("question".utf8))
      try pair.server.write(Array("answer".utf8))
      pair.server.close()
      #expect(try pair.client.readAll() == Array("answer".utf8))
      let error = netError { try pair.client.write([1]) }
      #expect(error?.code == EPIPE)
    }
  }

  @Test func `the end of the stream behind the last bytes is not missed, however the reader is timed`() async throws {
    try await onCoroutine {
      for round in 0..<300 {
        let pair = try TCPPair()
        let reader = co_launch { try pair.server.readAll() }
        if round % 3 == 0 { try pair.server.untilAwaited(.reading) }
        try pair.client.write([1, 2, 3])
        if round % 2 == 0 { try co_yield() }
        try pair.client.shutdownWrite()
        #expect(try reader.join() == [1, 2, 3])
      }
    }
  }

  @Test func `urgent data stops no reader for ever`() async throws {
    try await onCoroutine {
      for _ in 0..<100 {
        let pair = try TCPPair()
        let reader = co_launch { try pair.server.readExactly(6) }
        pair.client.withUnsafeDescriptor { number in
          for text in ["abc", "u", "def"] {
            _ = text.withCString { send(number, $0, text.utf8.count, text == "u" ? Int32(MSG_OOB) : 0) }
          }
        }
        #expect(try reader.join() == Array("abcdef".utf8))
      }
    }
  }

  @Test func `a reset is ECONNRESET with the peer's address`() async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      let reader = co_launch { netError { try pair.server.read(upTo: 10) } }
      try pair.server.untilAwaited(.reading)
      pair.client.reset()
      let error = try #require(try reader.join())
      #expect(error.code == ECONNRESET)
      #expect(error.address == pair.server.remoteAddress)
      #expect("\(error)".contains("reading from \(pair.server.remoteAddress)"))
    }
  }

  @Test func `a second reader or writer is refused, and the first one is not disturbed`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      let reader = co_launch { try one.read(upTo: 10) }
      try one.untilAwaited(.reading)
      #expect(throws: NetError.busy) { try one.read(upTo: 10) }
      try other.write([5])
      #expect(try reader.join() == [5])
      let filled = try one.fill()
      let writer = co_launch { try one.write([UInt8](repeating: 1, count: 1_000_000)) }
      try one.untilAwaited(.writing)
      #expect(throws: NetError.busy) { try one.write([1]) }
      #expect(throws: NetError.busy) { try one.sendFile(0, offset: 0, count: 1) }
      #expect(throws: NetError.busy) { try one.shutdownWrite() }
      // While it is written, it can be read.
      try other.write([6])
      #expect(try one.read(upTo: 10) == [6])
      var missing = filled + 1_000_000
      while missing > 0 { missing -= try other.read(upTo: 1 << 20).count }
      try writer.join()
    }
  }

  @Test func `a close wakes the reader and the writer`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      _ = try one.fill()
      let reader = co_launch { netError { try one.read(upTo: 10) } }
      let writer = co_launch { netError { try one.write([1]) } }
      try one.untilAwaited(.reading)
      try one.untilAwaited(.writing)
      #expect(!one.isClosed)
      one.close()
      one.close()
      #expect(one.isClosed)
      #expect(try reader.join() == .closed)
      #expect(try writer.join() == .closed)
      #expect(throws: NetError.closed) { try one.read(upTo: 1) }
      #expect(throws: NetError.closed) { try one.write([1]) }
      #expect(throws: NetError.closed) { try one.shutdownWrite() }
      // The peer's bytes come to their end at once, while the one that was woken may not have run.
      #expect(try !other.readAll().isEmpty)
    }
  }

  @Test func `a close is seen by the peer before the one it woke has run`() async throws {
    // On one queue, the woken reader cannot run before this coroutine waits.
    try await co_launch(on: DispatchQueue(label: "close")) {
      let (one, other) = try Connection.pair()
      let reader = co_launch { netError { try one.read(upTo: 10) } }
      try one.untilAwaited(.reading)
      one.close()
      let isAtEnd = other.withUnsafeDescriptor { number in
        var byte: UInt8 = 0
        var count = -1
        // A process that another test is starting has a copy of the descriptor until it runs its program.
        while count < 0 {
          count = recv(number, &byte, 1, 0)
          if count < 0, errno != EAGAIN { return false }
          sched_yield()
        }
        return count == 0
      }
      #expect(isAtEnd && !reader.isFinished)
      #expect(try reader.join() == .closed)
    }
    .value
  }

  @Test func `the last reference closes`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      var kept: Connection? = one
      let number = try #require(kept?.withUnsafeDescriptor { $0 })
      #expect(number >= 0)
      kept = nil
      _ = consume one
      #expect(try other.read(upTo: 1).isEmpty)
    }
  }

  @Test func `a descriptor in use stays open until its user is done`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      one.withUnsafeDescriptor { number in
        one.close()
        #expect(fcntl(number, F_GETFD) >= 0)
      }
      #expect(one.withUnsafeDescriptor { $0 } == -1)
      #expect(try other.read(upTo: 1).isEmpty)
    }
  }

  @Test func `a deadline ends a wait, and the next read gets the bytes`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      for round in 0..<20 {
        #expect(throws: TimeoutError.self) { try co_timeout(.milliseconds(1)) { try one.read(upTo: 10) } }
        try other.write([UInt8(round)])
        #expect(try co_timeout(.seconds(60)) { try one.read(upTo: 10) } == [UInt8(round)])
      }
    }
  }

  @Test func `a cancelled coroutine reads and writes nothing`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      try other.write([1])
      let hasStarted = Promise<Void>()
      let isCancelled = co_launch {
        hasStarted.fulfill(())
        while !co_isCancelled { try? co_yield() }
        #expect(throws: CancellationError.self) { try one.read(upTo: 1) }
        #expect(throws: CancellationError.self) { try one.write([1]) }
        #expect(throws: CancellationError.self) { try Connection.connect(to: .loopback(port: 1)) }
        return try co_shield { try one.read(upTo: 1) }
      }
      try co_await(hasStarted)
      isCancelled.cancel()
      #expect(try isCancelled.join() == [1])
    }
  }

  @Test func `outside a coroutine, what waits is refused, and what does not is not`() throws {
    let (one, other) = try Connection.pair()
    #expect(throws: CoroutineError.self) { try one.read(upTo: 1) }
    #expect(throws: CoroutineError.self) { try one.write([1]) }
    #expect(throws: CoroutineError.self) { try Connection.connect(to: .loopback(port: 1)) }
    let listener = try Listener.bind(.loopback(port: 0))
    #expect(throws: CoroutineError.self) { try listener.accept() }
    try one.shutdownWrite()
    listener.close()
    other.close()
  }

  @Test func `small writes are sent at once, on both sides, unless told otherwise`() async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      #expect(pair.client.noDelay && pair.server.noDelay)
      pair.client.noDelay = false
      #expect(!pair.client.noDelay)
      #expect(!pair.client.keepAlive)
      pair.client.keepAlive = true
      #expect(pair.client.keepAlive)
      let (one, _) = try Connection.pair()
      one.noDelay = false
      #expect(one.noDelay)
    }
  }

  @Test func `both ends know both addresses`() async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      #expect(pair.client.remoteAddress == pair.listener.address)
      #expect(pair.server.localAddress == pair.listener.address)
      #expect(pair.client.localAddress == pair.server.remoteAddress)
      pair.client.close()
      #expect(pair.client.localAddress == pair.server.remoteAddress)
    }
  }
}
