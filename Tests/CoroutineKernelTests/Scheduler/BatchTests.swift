import Synchronization
import Testing

@testable import Coroutine

/// Scheduler.swift: what a worker does with the coroutines that one look at its descriptors has woken.
@Suite("Batches of events", .timeLimit(.minutes(10)))
struct BatchTests {
  @Test func `a batch is held, unless it is expected to last longer than a time slice`() async throws {
    let pool = ownWorkers("batch", count: 1)
    // Stops the watchdog before it starts, which could move the coroutine to a spare worker.
    pool.watching.store(true, ordering: .relaxed)
    let worker = pool.workers[0]
    let seen = try await onCoroutine(on: worker.currentQueue) {
      try ([0, 80_000, 90_000] as [UInt64]).map { mean in
        let carrier = try #require(Carrier.current)
        worker.timeSlice.mean = mean
        var batch = JobQueue()
        _ = worker.readyQueue.appendHeld(&batch)
        worker.expectBatch(of: 3, carrier)
        // The clock is read before the last job of the batch.
        #expect(carrier.pointee.switchesLeft <= 2)
        return worker.readyQueue.pointee.isHeld
      }
    }
    #expect(seen == [true, true, false])
  }

  @Test func `any other job ends the hold`() async throws {
    let pool = ownWorkers("held", count: 1)
    pool.watching.store(true, ordering: .relaxed)
    let queue = pool.workers[0].currentQueue
    let isHeld = try await onCoroutine(on: queue) {
      var batch = JobQueue()
      _ = pool.workers[0].readyQueue.appendHeld(&batch)
      let other = co_launch {}
      let isHeld = pool.workers[0].readyQueue.pointee.isHeld
      try other.join()
      return isHeld
    }
    #expect(!isHeld)
  }

  @Test func `jobs of a few microseconds in small batches do not make the looks at the clock rare`() {
    var slice = TimeSlice()
    var now: UInt64 = 1_000
    for _ in 0..<100 {
      slice.begin(now)
      slice.allotted = 1
      now += 6_000
      _ = slice.check(now)
    }
    #expect(slice.interval <= 4)
  }

  @Test func `the mean counts the resumes that were allotted`() {
    var slice = TimeSlice()
    slice.begin(1_000)
    slice.allotted = 2
    let continues = slice.check(21_000)
    #expect(continues)
    #expect(slice.mean == 10_000)
    #expect(slice.resumes == 2)
    #expect(slice.allotted == slice.interval)
  }
}
