import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// What happens at the same time on several workers.
@Suite("Socket races", .serialized, .timeLimit(.minutes(10)))
struct RaceTests {
  @Test func `close against read and write never touches a number that is used again`() async throws {
    let run = Run()
    try await onOwnWorkers {
      let parts = 4
      // Each part opens pairs all the time, so a number that was closed is at once another part's. Every connection
      // carries its own mark: a byte of another mark was read or written through a number that was used again.
      try co_scope { scope in
        for part in 0..<parts {
          scope.launch {
            var random = run.random(part)
            for round in 0..<run.rounds(25_000) {
              let mark = UInt8(truncatingIfNeeded: round &* parts &+ part)
              let (one, other) = try Connection.pair()
              let reader = co_launch {
                do {
                  while true {
                    let bytes = try one.read(upTo: 8)
                    if bytes.isEmpty { return true }
                    if bytes.contains(where: { $0 != mark }) { return false }
                  }
                } catch {
                  return (error as? NetError) == .closed
                }
              }
              let writer = co_launch {
                do {
                  for _ in 0..<3 { try other.write([mark, mark]) }
                  return true
                } catch {
                  // Linux says ECONNRESET to a write that is under way when the peer is closed with bytes unread.
                  guard let error = error as? NetError else { return false }
                  return error == .closed || error.code == EPIPE || error.code == ECONNRESET
                }
              }
              for _ in 0..<Int.random(in: 0...3, using: &random) { try co_yield() }
              one.close()
              if Bool.random(using: &random) { other.close() }
              let (isRead, isWritten) = (try reader.join(), try writer.join())
              if !isRead || !isWritten { Issue.record("read \(isRead), written \(isWritten); \(run.replay)") }
            }
          }
        }
      }
    }
  }

  @Test func `close against accept and connect ends both`() async throws {
    let run = Run()
    try await onOwnWorkers {
      try co_scope { scope in
        for part in 0..<3 {
          scope.launch {
            var random = run.random(part)
            for round in 0..<run.rounds(34_000) {
              let listener = try Listener.bind(.unix("@co-net-race-\(getpid())-\(part)-\(round)"))
              // What an accepted connection sends: another mark comes from another part's listener.
              let mark = UInt8(truncatingIfNeeded: round &* 3 &+ part)
              let acceptor = co_launch {
                do {
                  while true {
                    let peer = try listener.accept()
                    _ = try? peer.write([mark])
                  }
                } catch {
                  return error as? NetError
                }
              }
              let client = co_launch {
                let bytes = try? Connection.connect(to: listener.address).read(upTo: 1)
                return bytes?.allSatisfy { $0 == mark } ?? true
              }
              for _ in 0..<Int.random(in: 0...4, using: &random) { try co_yield() }
              listener.close()
              #expect(try acceptor.join() == .closed, "\(run.replay)")
              #expect(try client.join(), "\(run.replay)")
            }
          }
        }
      }
    }
  }

  @Test func `cancelled and timed out at random, an echo loses and reorders nothing`() async throws {
    let run = Run()
    try await onOwnWorkers {
      try co_scope { scope in
        for part in 0..<6 {
          scope.launch {
            var random = run.random(part)
            let pair = try TCPPair()
            let (one, other) = part % 2 == 0 ? (pair.client, pair.server) : try Connection.pair()
            let total = run.rounds(400_000)
            // With few rounds the pieces are smaller, not fewer.
            let most = max(1, min(60_000, total / 7))
            let bytes = (0..<total).map { UInt8(truncatingIfNeeded: $0 &* 2_654_435_761 >> 13) }
            let seed = random.next()
            let writer = co_launch {
              var random = Random(state: seed)
              while one.bytesWritten < total {
                let end = min(total, one.bytesWritten + Int.random(in: 1...most, using: &random))
                let piece = Array(bytes[one.bytesWritten..<end])
                try Self.interrupted(&random) { try one.write(piece) }
              }
              try one.shutdownWrite()
            }
            var got: [UInt8] = []
            var isOver = false
            while !isOver {
              let room = Int.random(in: 1...max(1, most / 3), using: &random)
              let piece = try Self.interrupted(&random) { try other.read(upTo: room) }
              if let piece {
                got += piece
                isOver = piece.isEmpty
              }
            }
            try writer.join()
            // Not inside of #expect, which would look for the differences of all bytes for hours.
            let isSame = got == bytes
            #expect(isSame, "\(run.replay)")
          }
        }
      }
    }
  }

  /// Runs `body` in a coroutine that may be cancelled at any moment, or under a deadline; nil if that has ended it.
  private static func interrupted<R: Sendable>(
    _ random: inout Random,
    _ body: @escaping @Sendable () throws -> R
  ) throws -> R? {
    switch Int.random(in: 0..<3, using: &random) {
    case 0: return try body()
    case 1:
      do {
        return try co_timeout(.microseconds(Int.random(in: 1...300, using: &random))) { try body() }
      } catch is TimeoutError {
        return nil
      }
    default:
      let job = co_launch(body)
      for _ in 0..<Int.random(in: 0...4, using: &random) { try co_yield() }
      job.cancel()
      do {
        return try job.join()
      } catch is CancellationError {
        return nil
      }
    }
  }

  @Test func `ping and pong over every kind of socket never stops`() async throws {
    let run = Run()
    try await onOwnWorkers {
      try co_scope { scope in
        for part in 0..<8 {
          scope.launch {
            let tcp = try TCPPair()
            let (one, other) = part % 2 == 0 ? (tcp.client, tcp.server) : try Connection.pair()
            let echo = co_launch {
              while true {
                let bytes = try other.read(upTo: 100)
                if bytes.isEmpty { return }
                try other.write(bytes)
              }
            }
            for round in 0..<run.rounds(3_000) {
              try one.write([UInt8(truncatingIfNeeded: round)])
              #expect(try one.read(upTo: 100) == [UInt8(truncatingIfNeeded: round)])
            }
            one.close()
            try? echo.join()
          }
        }
      }
    }
  }
}
