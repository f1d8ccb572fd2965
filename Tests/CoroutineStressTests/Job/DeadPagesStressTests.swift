import CCoroutine
import Dispatch
import Testing

@testable import Coroutine

/// Frames with numbers of their own, which are checked on the way back.
@inline(never)
private func goDeep(_ levels: Int, _ mark: UInt64, _ body: () throws -> Void) rethrows -> Bool {
  var frame = InlineArray<96, UInt64>(repeating: 0)
  for index in frame.indices { frame[index] = mark &+ UInt64(levels * frame.count + index) }
  if levels > 1 {
    guard try goDeep(levels - 1, mark, body) else { return false }
  } else {
    try body()
  }
  for index in frame.indices where frame[index] != mark &+ UInt64(levels * frame.count + index) { return false }
  return true
}

@Suite("Stress: dead pages", .timeLimit(.minutes(10)))
struct DeadPagesStressTests {
  @Test func `frames stay whole while coroutines are woken at random, and sweeps never stop`() async throws {
    let stress = Stress()
    let (count, rounds) = (stress.crowd(200), stress.rounds(400))
    let (ended, broken, swept) = (Census(), Census(), Census())
    let isSwept = cco_compiled_sanitizers() & (CCO_ADDRESS_SANITIZER.rawValue | CCO_THREAD_SANITIZER.rawValue) == 0
    let channels = (0..<8).map { _ in Channel<UInt64>(4) }
    let queues = queues(2)
    // Each waits at a depth that differs from wait to wait: for values, for short times, for its turn.
    let jobs = (0..<count).map { number in
      co_launch(on: number % 3 == 2 ? nil : queues[number % 3]) {
        defer { ended.change() }
        var random = stress.random(number)
        for round in 0..<1_000 * rounds {
          // On a crowded machine all rounds may be over before the threads have come to a sweep.
          if round >= rounds, swept.now > 0 || !isSwept { break }
          let (depth, mark) = (1 + Int(random.next() % 40), random.next())
          let (kind, channel) = (random.next() % 8, channels[Int(random.next() % 8)])
          let further = 1 + Int(random.next() % 20)
          let isWhole = try goDeep(depth, mark) {
            switch kind {
            case 0: try co_delay(.microseconds(Int64(mark % 300)))
            case 1: try co_yield()
            // Jobs that end while a sweep is about to look at them.
            case 2: try co_launch { try co_yield() }.join()
            default:
              // A deadline interrupts the coroutine, perhaps while it is held.
              try? co_timeout(.microseconds(Int64(mark % 3_000))) {
                if number % 2 == 0 { try channel.send(mark) } else { _ = try channel.receive() }
              }
            }
            // At once below the stack pointer that was saved.
            if !goDeep(further, mark ^ 1, {}) { broken.change() }
          }
          if !isWhole { broken.change() }
        }
      }
    }
    try await onThreads(2) { _ in
      while ended.now < count { swept.change(by: DeadPages.sweep(olderThan: 0).swept) }
    }
    for job in jobs { try await job.value }
    #expect(broken.now == 0, "\(stress.replay)")
    if isSwept { #expect(swept.now > 0, "\(stress.replay)") }
  }
}
