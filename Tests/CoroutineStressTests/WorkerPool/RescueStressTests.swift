import Dispatch
import Glibc
import Testing

@testable import Coroutine

/// Rescuers end waits on stuck workers while deliveries, deadlines and the workers themselves claim the same
/// waits.
@Suite("Stress: cancellation while workers compute", .timeLimit(.minutes(10)), .enabled(if: Processors.usable > 1))
struct RescueStressTests {
  @Test func `deadlines, cancels and deliveries while workers compute: all jobs end, no value is lost`() async throws {
    let stress = Stress()
    let group = Unmanaged.passRetained(WorkerPool(count: 2, label: "computing")).takeUnretainedValue()
    let (jobs, rounds) = (48, stress.rounds(100))
    let channel = Channel<Int>(8)
    let (received, sent, ended) = (Census(), Census(), Census())
    let over = Census()

    // Computes for longer than two inspections of the watchdog, then yields.
    let computing = (0..<2).map { number in
      co_launch(on: group.workers[number].currentQueue) {
        var random = stress.random(1_000 + number)
        while over.now == 0 {
          let end = Clock.now + UInt64.random(in: 1_000_000...9_000_000, using: &random)
          while Clock.now < end, over.now == 0 { sched_yield() }
          try co_delay(.microseconds(Int.random(in: 100...4_000, using: &random)))
        }
      }
    }
    let waiting = (0..<jobs).map { number in
      co_launch(on: group.workers[number % 2].currentQueue) {
        var random = stress.random(number)
        for _ in 0..<rounds {
          let target = wait(for: channel, received, &random)
          switch Int.random(in: 0..<4, using: &random) {
          case 0: target.cancel()
          case 1: startCancelling(target)
          default: break
          }
          _ = try? co_shield { try target.join() }
          ended.change()
        }
      }
    }
    let sending = co_launch(on: DispatchQueue(label: "computing.sender")) {
      var random = stress.random(2_000)
      while over.now == 0 {
        if case .sent = channel.trySend(1) { sent.change() }
        try co_delay(.microseconds(Int.random(in: 1...400, using: &random)))
      }
    }
    for job in waiting { try await job.value }
    over.change()
    for job in computing { try await job.value }
    try await sending.value
    var left = 0
    while case .received = channel.tryReceive() { left += 1 }
    #expect(ended.now == jobs * rounds, "\(stress.replay)")
    #expect(received.now + left == sent.now, "\(stress.replay)")
  }
}

/// A job that waits for a value with a deadline, in a scope with a child that waits as well, perhaps shielded.
private func wait(for channel: Channel<Int>, _ received: Census, _ random: inout SeededRandom) -> Job<Void> {
  let deadline = Duration.microseconds(Int.random(in: 1...3_000, using: &random))
  let isShielded = Bool.random(using: &random)
  return co_launch {
    try co_timeout(deadline) {
      try co_scope { scope in
        scope.launch { if try channel.receive() != nil { received.change() } }
        let body = { if try channel.receive() != nil { received.change() } }
        if isShielded {
          try co_shield { try co_timeout(deadline) { try body() } }
        } else {
          try body()
        }
      }
    }
  }
}

/// Cancels from a thread that is not a worker.
private func startCancelling(_ job: Job<Void>) {
  DispatchQueue.global().async { job.cancel() }
}
