import CoroutineTesting
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Copies between two connections", .timeLimit(.minutes(10)))
struct CopyTests {
  /// Two clients, and between them the two connections that a copy connects.
  private struct Tunnel {
    let left: Connection
    let right: Connection
    let a: Connection
    let b: Connection

    init(isTCP: Bool = true) throws {
      if isTCP {
        let (one, other) = (try TCPPair(), try TCPPair())
        (left, a, right, b) = (one.client, one.server, other.client, other.server)
      } else {
        (left, a) = try Connection.pair()
        (right, b) = try Connection.pair()
      }
    }

    func copy(idle: Duration? = nil) -> Job<(aToB: Int64, bToA: Int64)> { co_launch { try co_copy(a, b, idle: idle) } }
  }

  private static func bytes(_ count: Int, _ seed: UInt64) -> [UInt8] {
    var random = Random(state: seed)
    var bytes = [UInt8](repeating: 0, count: count)
    for index in bytes.indices { bytes[index] = UInt8(truncatingIfNeeded: random.next()) }
    return bytes
  }

  @Test(arguments: [true, false])
  func `every byte arrives, in order, both ways at once, by recv and by splice`(_ isTCP: Bool) async throws {
    try await onCoroutine {
      let tunnel = try Tunnel(isTCP: isTCP)
      let copy = tunnel.copy(idle: .seconds(100))
      // Sizes around the room of a recv, and far above it.
      let sizes = [1, 16_383, 16_384, 16_385, 3, 300_000, 600_000, 7]
      let there = sizes.enumerated().map { Self.bytes($0.element, UInt64($0.offset)) }
      let back = sizes.reversed().enumerated().map { Self.bytes($0.element, UInt64($0.offset + 100)) }
      try co_scope { scope in
        for (connection, parts) in [(tunnel.left, there), (tunnel.right, back)] {
          scope.launch {
            for part in parts {
              try connection.write(part)
              try co_yield()
            }
            try connection.shutdownWrite()
          }
        }
        let atRight = scope.launch { try tunnel.right.readAll() }
        let atLeft = scope.launch { try tunnel.left.readAll() }
        // Compared outside of #expect, which would look for the differences of many bytes for long.
        let isSameThere = try atRight.join() == Array(there.joined())
        let isSameBack = try atLeft.join() == Array(back.joined())
        #expect(isSameThere && isSameBack)
      }
      let counts = try copy.join()
      #expect(counts.aToB == there.reduce(0) { $0 + $1.count } && counts.bToA == back.reduce(0) { $0 + $1.count })
      #expect(tunnel.b.bytesWritten == counts.aToB)
      #expect(!tunnel.a.isClosed && !tunnel.b.isClosed)
    }
  }

  @Test func `one direction ends, and the other goes on`() async throws {
    try await onCoroutine {
      let tunnel = try Tunnel()
      let copy = tunnel.copy()
      try tunnel.left.write([1, 2, 3])
      try tunnel.left.shutdownWrite()
      #expect(try tunnel.right.readAll() == [1, 2, 3])
      for byte in UInt8(0)..<5 {
        try tunnel.right.write([byte])
        #expect(try tunnel.left.readExactly(1) == [byte])
      }
      try tunnel.right.shutdownWrite()
      #expect(try copy.join() == (3, 5))
    }
  }

  @Test func `a copy without a free descriptor goes through memory`() async throws {
    await #expect(processExitsWith: .success) {
      await inCoroutine {
        try warmUp()
        let tunnel = try Tunnel()
        let copy = tunnel.copy()
        try tunnel.a.untilAwaited(.reading)
        var taken: [Int32] = []
        while case let number = dup(0), number >= 0 { taken.append(number) }
        let sent = Self.bytes(1_000_000, 1)
        let writer = co_launch {
          try tunnel.left.write(sent)
          try tunnel.left.shutdownWrite()
        }
        let received = try tunnel.right.readAll()
        for number in taken { close(number) }
        try writer.join()
        let isSame = received == sent
        #expect(isSame)
        try tunnel.right.shutdownWrite()
        #expect(try copy.join() == (1_000_000, 0))
      }
    }
  }

  // MARK: The idle time, in worlds, where time is exact

  @Test func `neither direction moves a byte for the idle time, and the copy ends without an error`() throws {
    for seed in 0..<20 as Range<UInt64> {
      let world = World(seed: seed)
      try world.run {
        let tunnel = try Tunnel(isTCP: false)
        let start = world.now
        let copy = tunnel.copy(idle: .seconds(10))
        // One direction alone keeps the copy alive.
        for _ in 0..<5 {
          try co_delay(.seconds(9))
          try tunnel.right.write([1])
          _ = try tunnel.left.readExactly(1)
        }
        let counts = try copy.join()
        #expect(counts == (0, 5))
        #expect(world.now - start == .seconds(55), "seed \(seed)")
      }
    }
  }

  @Test func `a side that does not read is idle too`() throws {
    let world = World(seed: 1)
    try world.run {
      let tunnel = try Tunnel(isTCP: false)
      let copy = tunnel.copy(idle: .seconds(10))
      let writer = co_launch { try tunnel.left.write([UInt8](repeating: 0, count: 10_000_000)) }
      let counts = try copy.join()
      #expect(counts.aToB > 0 && counts.aToB < 10_000_000 && counts.bToA == 0)
      tunnel.a.close()
      #expect(failure { try writer.join() } is NetError)
    }
  }

  @Test(arguments: [nil, .seconds(600)] as [Duration?])
  func `a cancellation ends a copy with its reason, whatever that is`(_ idle: Duration?) throws {
    struct Shutdown: Error {}
    for reason in [TimeoutError(), Shutdown(), NetError.closed] as [any Error] {
      let world = World(seed: 1)
      try world.run {
        let tunnel = try Tunnel(isTCP: false)
        let copy = co_launch { try co_copy(tunnel.a, tunnel.b, idle: idle) }
        try world.settle()
        let start = co_now
        copy.cancel(reason)
        let error = failure { try copy.join() }
        #expect(error.map { type(of: $0) == type(of: reason) } == true, "\(String(describing: error))")
        #expect(co_now == start)
      }
    }
  }

  @Test func `no idle time ends a copy as soon as one direction would wait`() throws {
    let world = World(seed: 1)
    try world.run {
      let tunnel = try Tunnel(isTCP: false)
      try tunnel.left.write([1, 2])
      // A world may let both bytes be read one by one, and the second one later.
      var copied: Int64 = 0
      while copied < 2 {
        copied += try co_copy(tunnel.a, tunnel.b, idle: .zero).aToB
        try co_delay(.milliseconds(1))
      }
      #expect(copied == 2)
      #expect(try co_copy(tunnel.a, tunnel.b, idle: .seconds(-1)) == (0, 0))
    }
  }

  // MARK: Bad peers

  @Test(arguments: [false, true])
  func `a reset of either peer in the middle ends the copy with its error`(_ fromTarget: Bool) async throws {
    try await onCoroutine {
      let tunnel = try Tunnel()
      let copy = tunnel.copy()
      try tunnel.left.write([1])
      _ = try tunnel.right.readExactly(1)
      (fromTarget ? tunnel.right : tunnel.left).reset()
      let error = failure { try copy.join() } as? NetError
      #expect(error?.code == ECONNRESET)
      #expect(error?.address == (fromTarget ? tunnel.b : tunnel.a).remoteAddress)
    }
  }

  @Test(arguments: [false, true])
  func `what a reset has cut off is reset at the other end, and does not look complete`(_ isBack: Bool) async throws {
    try await onCoroutine {
      let tunnel = try Tunnel()
      let copy = tunnel.copy()
      let (near, far) = isBack ? (tunnel.right, tunnel.left) : (tunnel.left, tunnel.right)
      try near.write([1])
      #expect(try far.readExactly(1) == [1])
      near.reset()
      _ = failure { try copy.join() }
      let error = failure { try far.readAll() } as? NetError
      #expect(error?.code == ECONNRESET)
    }
  }

  @Test func `a stream that has ended is complete, also if the other one is cut off`() async throws {
    try await onCoroutine {
      let tunnel = try Tunnel()
      let copy = tunnel.copy()
      try tunnel.left.write([1, 2])
      try tunnel.left.shutdownWrite()
      #expect(try tunnel.right.readExactly(2) == [1, 2])
      #expect(try tunnel.right.read(upTo: 1).isEmpty)
      tunnel.left.reset()
      // The copy sees it when it writes there.
      while (try? tunnel.right.write([3])) != nil, !copy.isFinished { try co_yield() }
      _ = failure { try copy.join() }
      #expect(!tunnel.b.isClosed)
    }
  }

  @Test func `a peer that closes while much is on its way ends the copy, and raises no signal`() async throws {
    try await onCoroutine {
      for _ in 0..<10 {
        let tunnel = try Tunnel()
        let copy = tunnel.copy()
        let writer = co_launch { while true { try tunnel.left.write([UInt8](repeating: 1, count: 100_000)) } }
        _ = try tunnel.right.readExactly(300_000)
        tunnel.right.close()
        let error = failure { try copy.join() } as? NetError
        #expect(error?.code == EPIPE || error?.code == ECONNRESET, "\(String(describing: error))")
        tunnel.a.close()
        _ = try? writer.join()
      }
    }
  }

  // The real clock, because a world has no splice, which holds bytes in a pipe when the peer stops.
  @Test func `a peer that stops in the middle of a large copy is idle too, and nothing is closed`() async throws {
    try await onCoroutine {
      let tunnel = try Tunnel()
      let bytes = [UInt8](repeating: 1, count: 100_000_000)
      let writer = co_launch { try tunnel.left.write(bytes) }
      // Bytes are there before the idle time begins: on a busy machine it might end before the writer has run.
      try until { Socket.isReadable(tunnel.a.socket.number) }
      // The peer reads nothing: a part of it fits into the buffers of the system.
      let counts = try tunnel.copy(idle: .seconds(5)).join()
      #expect(counts.aToB > 0 && counts.aToB < 100_000_000 && counts.bToA == 0, "\(counts)")
      #expect(!tunnel.a.isClosed && !tunnel.b.isClosed)
      tunnel.a.close()
      #expect(failure { try writer.join() } is NetError)
    }
  }

  @Test func `out-of-band data stops no copy, small or large`() async throws {
    try await onCoroutine {
      let tunnel = try Tunnel()
      let copy = tunnel.copy()
      let before = Self.bytes(200_000, 1)
      let after = Self.bytes(200_000, 2)
      let writer = co_launch {
        for part in [[1, 2], before] as [[UInt8]] {
          try tunnel.left.write(part)
          tunnel.left.withUnsafeDescriptor { _ = send($0, "!", 1, Int32(MSG_OOB)) }
          try tunnel.left.write(after)
        }
        try tunnel.left.shutdownWrite()
      }
      // As a read of a connection does, the copy skips the urgent byte. One that a later one overtakes is an ordinary
      // byte again.
      let received = try tunnel.right.readAll()
      try writer.join()
      let expected = 2 + before.count + 2 * after.count
      #expect((expected...expected + 1).contains(received.count))
      let isSame = Array(received.suffix(after.count)) == after
      #expect(isSame)
      tunnel.right.close()
      _ = try? copy.join()
    }
  }

  @Test func `another user of a connection is refused, and so is a copy of what is used`() async throws {
    try await onCoroutine {
      let tunnel = try Tunnel()
      let copy = tunnel.copy()
      try tunnel.a.untilAwaited(.reading)
      try tunnel.b.untilAwaited(.reading)
      for connection in [tunnel.a, tunnel.b] {
        #expect(throws: NetError.busy) { try connection.read(upTo: 1) }
        #expect(throws: NetError.busy) { try connection.write([1]) }
      }
      #expect(throws: NetError.busy) { try co_copy(tunnel.a, tunnel.b, idle: nil) }
      #expect(throws: NetError.busy) { try co_copy(tunnel.left, tunnel.left, idle: nil) }
      copy.cancel()
      #expect(failure { try copy.join() } is CancellationError)
      // Nothing is claimed any more.
      try tunnel.left.write([9])
      #expect(try tunnel.a.read(upTo: 1) == [9])
    }
  }

  @Test func `a close of either connection ends the copy`() async throws {
    try await onCoroutine {
      for closesFirst in [true, false] {
        let tunnel = try Tunnel()
        let copy = tunnel.copy()
        try tunnel.a.untilAwaited(.reading)
        (closesFirst ? tunnel.a : tunnel.b).close()
        #expect(failure { try copy.join() } as? NetError == .closed)
      }
    }
  }

  @Test func `a copy leaves no descriptor behind, whatever ends it`() async {
    await #expect(processExitsWith: .success) {
      await inCoroutine {
        try warmUpWithTimers()
        let before = openDescriptors()
        for round in 0..<40 {
          let tunnel = try Tunnel()
          let copy = tunnel.copy(idle: .seconds(100))
          let writer = co_launch { try tunnel.left.write([UInt8](repeating: 1, count: 400_000)) }
          _ = try tunnel.right.readExactly(round.isMultiple(of: 2) ? 400_000 : 100_000)
          switch round % 4 {
          case 0: tunnel.left.reset()
          case 1: copy.cancel()
          case 2: tunnel.a.close()
          default: tunnel.right.close()
          }
          _ = try? copy.join()
          for connection in [tunnel.left, tunnel.right, tunnel.a, tunnel.b] { connection.close() }
          _ = try? writer.join()
        }
        // The watchdog opens a file now and then.
        try until { openDescriptors() <= before }
      }
    }
  }
}
