import Dispatch
import Testing

@testable import Coroutine

/// An interrupt (JobRecord.swift) in the inbox of a queue that the job has left, and on which nothing is live any more.
@Suite("An interrupt of a job that has left a queue", .timeLimit(.minutes(10)))
struct LateInterruptTests {
  /// The scheduler of a queue whose only job has ended.
  ///
  /// The scheduler has given its queue up, which the caller holds.
  private func over(_ queue: DispatchQueue, _ last: Job<Void>) async throws -> Scheduler {
    try await last.value
    let scheduler = QueueHost.scheduler(for: queue)
    while scheduler.currentAnchor != nil || !scheduler.inbox.isIdle { await Task.yield() }
    return scheduler
  }

  @Test func `of a job that has ended ends within the call, and the queue continues`() async throws {
    let queue = taggedQueue("over")
    let job = co_launch(on: queue) {}
    let scheduler = try await over(queue, job)
    let isSent = Gate()
    startThread {
      scheduler.push(.work(Interrupt.retained(job)))
      isSent.open()
    }
    try await isSent.value
    #expect(scheduler.inbox.isIdle && scheduler.work.isEmpty)
    #expect(try await onCoroutine(on: queue) { currentTag } == "over")
  }

  @Test func `of a job that waits elsewhere ends its wait there`() async throws {
    let queue = taggedQueue("over")
    let scheduler = try await over(queue, co_launch(on: queue) {})
    let job = co_launch(on: taggedQueue("elsewhere")) { try waitForCancellation() }
    while !job.record.seemsWaiting { await Task.yield() }
    // Cancelled, and the interrupt is the one that went to the queue that is over.
    #expect(!job.record.claimCancel())
    let isSent = Gate()
    startThread {
      scheduler.push(.work(Interrupt.retained(job)))
      isSent.open()
    }
    try await isSent.value
    #expect(await asyncOutcome { try await job.value } == "CancellationError")
    #expect(scheduler.inbox.isIdle && scheduler.work.isEmpty)
  }
}
