import CTestSupport
import Dispatch
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// Peers that send without end, or announce much and send little.
@Suite("Peers that send much or little", .timeLimit(.minutes(10)))
struct GreedyPeerTests {
  @Test func `a coroutine whose peer always has bytes for it lets the others of its queue run`() async throws {
    try await co_launch(on: DispatchQueue(label: "greedy")) {
      let (one, other) = try Connection.pair()
      let count = min(try one.fill(), 50_000)
      let (runs, isOver) = (Locked(0), Locked(false))
      let neighbour = co_launch {
        while !isOver.current {
          runs.withLock { $0 += 1 }
          try co_yield()
        }
      }
      // The bytes are there, so no read waits.
      for _ in 0..<count { _ = try other.read(upTo: 1) }
      #expect(runs.current > 0)
      isOver.withLock { $0 = true }
      try neighbour.join()
    }
    .value
  }

  @Test func `a large call counts as many waits, so that the clock is read after a megabyte`() async throws {
    try await co_launch(on: DispatchQueue(label: "large")) {
      func waits(of call: () throws -> Int) rethrows -> (waits: Int, bytes: Int) {
        Carrier.current?.pointee.waitsLeft = 250
        let bytes = try call()
        return (250 - (Carrier.current?.pointee.waitsLeft ?? 250), bytes)
      }
      let (one, other) = try Connection.pair()
      let block = [UInt8](repeating: 1, count: 65_536)
      let written = try waits {
        try one.write(block)
        return block.count
      }
      #expect(written.waits >= 16 && written.waits < 24)
      let read = try waits { try other.read(upTo: block.count).count }
      #expect(read.waits >= read.bytes / 4_096 && read.waits < read.bytes / 4_096 + 8)
      try one.write(Array(block.prefix(100)))
      let short = try waits { try other.read(upTo: block.count).count }
      #expect(short.waits < 8)
    }
    .value
  }

  @Test func `a peer that announces a gigabyte and sends little costs little memory`() async {
    await #expect(processExitsWith: .success) {
      await inCoroutine {
        try warmUp()
        let (one, other) = try Connection.pair()
        let before = cts_heap_bytes()
        let job = co_launch { () throws in
          var reader = BufferedReader(other)
          return try reader.read(exactly: 1 << 30).count
        }
        for _ in 0..<10 {
          try one.write([UInt8](repeating: 1, count: 10_000))
          try until { !Socket.isReadable(other.socket.number) && other.socket.isAwaited(.reading) }
        }
        // 100,000 bytes have arrived.
        #expect(cts_heap_bytes() < before + 1_000_000)
        one.close()
        #expect(throws: NetError.endOfStream) { try job.join() }
      }
    }
  }

  @Test func `a short read of a TCP connection shows that nothing is left, and of a local one it does not`()
    async throws
  {
    try await onCoroutine {
      let pair = try TCPPair()
      let local = try Connection.pair()
      for (writer, reader, isDry) in [(pair.client, pair.server, true), (local.0, local.1, false)] {
        try writer.write([1])
        // An event would say that there may be more; it is not watched before the first wait.
        while !Socket.isReadable(reader.socket.number) { try co_yield() }
        #expect(reader.socket.mayBeReady(.reading))
        #expect(try reader.read(upTo: 2) == [1])
        #expect(reader.socket.mayBeReady(.reading) == !isDry)
        // As many bytes as there is room for: more may be left.
        try writer.write([2, 3])
        #expect(try reader.read(upTo: 1) == [2])
        #expect(reader.socket.mayBeReady(.reading))
      }
    }
  }
}
