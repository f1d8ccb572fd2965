import Dispatch
import Glibc
import Testing

@testable import Coroutine

/// The workers of the shared scheduler: work is distributed, and nothing is lost.
///
/// A test that blocks a worker has a separate pool: two such tests would block both shared workers of a machine with
/// two cores, and wait for each other.
@Suite(.timeLimit(.minutes(10)), .enabled(if: Processors.usable > 1))
struct WorkerTests {
  @Test func `a launched job runs while its launcher computes`() async throws {
    let ran = Flag()
    try await onCoroutine(on: ownWorkers("beside").workers[0].currentQueue) {
      co_launch { ran.raise() }
      co_launch {}
      // No suspension: only another worker can set it.
      spin(until: ran)
    }
  }

  @Test func `what a launcher launches without a pause runs on an idle worker meanwhile`() async throws {
    let workers = ownWorkers("burst").workers
    let home = try #require(workers[0].currentQueue)
    let ended = Locked((all: 0, there: 0))
    try await onCoroutine(on: workers[0].currentQueue) {
      // The other worker may have taken the launcher, where this one's thread began late.
      while !workers[0].isRunningHere { try co_switch(to: home) }
      var launched = 0
      let end = ContinuousClock.now + .seconds(120)
      // No suspension: only another thread can count.
      while case let count = ended.current, count.there < 10_000, ContinuousClock.now < end {
        // A bound for a machine that stops the other worker for long.
        guard launched < count.all + 50_000 else { continue }
        launched += 1
        co_launch {
          ended.withLock {
            $0.all += 1
            if workers[1].isRunningHere { $0.there += 1 }
          }
        }
      }
    }
    #expect(ended.current.there >= 10_000)
  }

  @Test func `a single job behind a long computation is rescued`() async throws {
    let ran = Flag()
    try await onCoroutine(on: ownWorkers("single").workers[0].currentQueue) {
      co_launch { ran.raise() }
      spin(until: ran)
    }
  }

  @Test func `jobs sent to a worker that computes for long are rescued from its inbox`() async throws {
    let launched = 16
    let ended = Locked(0)
    let isComputing = Flag()
    let done = Flag()
    let workers = ownWorkers("inbox").workers
    let computing = co_launch(on: workers[0].currentQueue) {
      isComputing.raise()
      spin(until: done)
    }
    try await onOwnThread {
      spin(until: isComputing)
      for number in 0..<launched { co_launch(on: workers[number % 2].currentQueue) { ended.withLock { $0 += 1 } } }
      while ended.current < launched { sched_yield() }
      done.raise()
    }
    try await computing.value
  }

  @Test func `timers stay with their worker: delays of stolen jobs end all the same`() async throws {
    for _ in 0..<20 {
      let count = try await onCoroutine {
        try co_scope { scope in
          let jobs = (0..<40).map { number in
            scope.launch {
              try co_timeout(.seconds(60)) {
                try co_yield()
                try co_delay(.microseconds(number * 10))
              }
              return 1
            }
          }
          return try jobs.reduce(0) { try $0 + $1.join() }
        }
      }
      #expect(count == 40)
    }
  }

  @Test func `a job that starts on a foreign thread may wait there at once`() async throws {
    for round in 0..<200 {
      let job = co_launch(on: round.isMultiple(of: 2) ? DispatchQueue(label: "home") : nil, start: .immediate) {
        try co_timeout(.seconds(60)) { try co_delay(.microseconds(50)) }
        return round
      }
      #expect(try await job.value == round)
    }
  }

  /// It is appended while the worker's handlers run, and no later one makes the worker look again.
  @Test func `a handler that a handler attaches on a worker runs as well`() async throws {
    let inner = try await onCoroutine(on: ownWorkers("handlers", count: 1).workers[0].currentQueue) {
      Promise.value(1).then { _ in Promise.value(2).then { $0 + 1 } }
    }
    #expect(try await inner.value == 3)
  }

  @Test func `rounds of parallel work never stall`() async throws {
    for _ in 0..<300 {
      let sum = try await onCoroutine {
        let jobs = (0..<8).map { number in
          co_launch {
            try co_yield()
            return number
          }
        }
        return try jobs.reduce(0) { try $0 + $1.join() }
      }
      #expect(sum == 28)
    }
  }
}

/// Blocks the thread, as a long computation does: nothing on this worker runs until another thread raises `flag`.
private func spin(until flag: Flag) {
  while !flag.isRaised { sched_yield() }
}
