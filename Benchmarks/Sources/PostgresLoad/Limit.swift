import Coroutine
import Glibc
import Harness
import Synchronization

/// How long a load lasts: for a time, or for a number of transactions of each client.
struct Limit: Sendable {
  var seconds: Double?
  var transactions = Int.max

  init(_ text: String) {
    if text.hasPrefix("=") { transactions = Int(text.dropFirst()) ?? 1 } else { seconds = Double(text) ?? 3 }
  }
}

/// A cheap generator: Swift's own makes a system call for each number.
struct Numbers: RandomNumberGenerator {
  private var state: UInt64

  init(seed: Int) { state = UInt64(seed + 1) &* 0x9E37_79B9_7F4A_7C15 }

  mutating func next() -> UInt64 {
    state ^= state << 13
    state ^= state >> 7
    state ^= state << 17
    return state
  }
}

/// What the clients of one load share.
private final class Shared: Sendable {
  let isOver = Atomic<Bool>(false)
  let done = Atomic<Int>(0)
}

/// Prints a figure.
func report(_ name: String, _ value: Double) { print("\(name)\t\(value)") }

/// Runs `client` in so many coroutines until the limit, and prints their rate and the processor time of a transaction.
///
/// `client` calls its argument in place of a loop: with the body of one transaction, or of so many as `times` says.
func load(
  clients: Int,
  _ limit: Limit,
  times: Int = 1,
  _ client: @escaping @Sendable (_ number: Int, _ loop: (() throws -> Void) throws -> Void) throws -> Void
) throws {
  // The runtime proves its timeouts by the first one, and makes one system call more for each wait before that.
  try co_delay(.milliseconds(5))
  let shared = Shared()
  // The clock starts when all clients have run once: connected, and prepared.
  let (ready, go) = (WaitGroup(), Promise<Void>())
  ready.add(clients)
  var start: (wall: UInt64, processor: UInt64) = (0, 0)
  try co_scope { scope in
    for number in 0..<clients {
      scope.launch {
        try client(number) { transaction in
          try transaction()
          ready.done()
          try co_await(go)
          var own = 0
          while own < limit.transactions, !shared.isOver.load(ordering: .relaxed) {
            try transaction()
            own += 1
          }
          shared.done.add(own, ordering: .relaxed)
        }
      }
    }
    try ready.wait()
    start = (Clock.wall.now, Clock.processor.now)
    go.fulfill(())
    if let seconds = limit.seconds {
      try co_delay(.seconds(seconds))
      shared.isOver.store(true, ordering: .relaxed)
    }
  }
  let count = Double(times * shared.done.load(ordering: .relaxed))
  report("tps", count / (Double(Clock.wall.now - start.wall) / 1e9))
  report("us", Double(Clock.processor.now - start.processor) / 1e3 / count)
}
