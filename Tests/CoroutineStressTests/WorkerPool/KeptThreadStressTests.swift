import CTestSupport
import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

/// Coroutines that keep their threads, among others that are stolen, taken along and taken over all the time.
@Suite("Stress: coroutines that keep their threads", .timeLimit(.minutes(10)))
struct KeptThreadStressTests {
  @Test func `the thread is the same after each of thousands of waits, and every value arrives`() async throws {
    let stress = Stress()
    let (pairs, rounds) = (24, stress.rounds(1_500, least: 20))
    let pool = Unmanaged.passRetained(WorkerPool(count: 3, label: "kept", spareRest: 1_000_000)).takeUnretainedValue()
    let (moved, free, sent) = (Census(), Census(), Census())
    let over = Census()
    // Computes or blocks for longer than several inspections of the watchdog, on every worker.
    let hogs = pool.workers.enumerated().map { number, worker in
      co_launch(on: worker.currentQueue) {
        var random = stress.random(1_000 + number)
        while over.now == 0 {
          let end = Clock.now + UInt64.random(in: 100_000...9_000_000, using: &random)
          while Clock.now < end, over.now == 0 { sched_yield() }
          try co_delay(.microseconds(Int.random(in: 50...3_000, using: &random)))
        }
      }
    }
    // Half of them keep their threads, each in another part of its life; the others move.
    let players = (0..<pairs).flatMap { number in
      let (there, back) = (Channel<Int>(1), Channel<Int>(1))
      return (0..<2).map { side in
        co_launch(on: pool.workers[(number + side) % 3].currentQueue) {
          var random = stress.random(2 * number + side)
          var left = rounds
          while left > 0 {
            let count = min(left, Int.random(in: 1...40, using: &random))
            left -= count
            let play = {
              let thread = cts_thread_id()
              for _ in 0..<count {
                if side == 0 {
                  try there.send(1)
                  sent.change(by: try back.receive() ?? 0)
                } else {
                  guard let value = try there.receive() else { return }
                  try wait(&random)
                  try back.send(value)
                }
                if cts_thread_id() != thread { (side == number % 2 ? moved : free).change() }
              }
            }
            if side == number % 2 { try co_pinned { try co_pinned(play) } } else { try play() }
          }
        }
      }
    }
    let cancelled = (0..<8).map { number in
      co_launch(on: pool.workers[number % 3].currentQueue) {
        var random = stress.random(3_000 + number)
        while over.now == 0 {
          try? co_pinned {
            let thread = cts_thread_id()
            defer { if cts_thread_id() != thread { moved.change() } }
            try co_timeout(.microseconds(Int.random(in: 1...2_000, using: &random))) {
              try Promise<Int>()._awaitValue()
            }
          }
        }
      }
    }
    for job in players { try await job.value }
    over.change()
    for job in hogs + cancelled { try await job.value }
    #expect(moved.now == 0, "\(stress.replay)")
    #expect(sent.now == pairs * rounds, "\(stress.replay)")
    // Otherwise nothing was to be seen here.
    #expect(free.now > 0, "\(stress.replay)")
    // The spare workers are the watchdog's as long as it looks.
    while pool.watching.load(ordering: .sequentiallyConsistent), !Task.isCancelled { await Task.yield() }
    // Where the time limit has ended that loop, nobody else may look at them.
    let isWatched = pool.watching.load(ordering: .sequentiallyConsistent)
    try #require(!isWatched, "\(stress.replay)")
    let workers = pool.workers + pool.spares
    #expect(workers.allSatisfy { $0.keepers == 0 && $0.readyQueue.pointee.marks & ReadyQueue.kept == 0 })
  }
}

/// One of the waits that change a thread: a time, a turn, an answer from elsewhere.
private func wait(_ random: inout SeededRandom) throws {
  switch Int.random(in: 0..<24, using: &random) {
  case 0: try co_delay(.microseconds(Int.random(in: 1...300, using: &random)))
  case 1: _ = try co_blocking { 1 }
  case 2: try co_await { await Task.yield() }
  case 3: try co_launch { try co_yield() }.join()
  case 4..<14: try co_yield()
  default: break
  }
}
