import CCoroutine
import Dispatch
import Testing

@testable import Coroutine

/// The C core's states of the stack that a job runs on.
@Suite("A job's context", .timeLimit(.minutes(10)))
struct StateTests {
  @Test func `it is running while the job runs, and suspended while the job waits`() async throws {
    let states = try await onSerialQueue {
      let gate = Gate()
      let seen = Locked<[cco_state]>([])
      let job = co_launch {
        let context = try Carrier.requireJob().1.pointee.context.unsafelyUnwrapped
        seen.withLock { $0.append(cco_state_of(context)) }
        try gate.pass()
        seen.withLock { $0.append(cco_state_of(context)) }
      }
      try co_yield()
      let context = job.record.pointee.context.unsafelyUnwrapped
      seen.withLock { $0.append(cco_state_of(context)) }
      gate.open()
      try job.join()
      return seen.current
    }
    #expect(states == [CCO_RUNNING, CCO_SUSPENDED, CCO_RUNNING])
  }

  @Test func `the stack of a job that waits or runs is not freed`() async throws {
    let refusals = try await onSerialQueue {
      let gate = Gate()
      let own = Locked<cco_status>(CCO_OK)
      let job = co_launch {
        own.current = cco_destroy(try Carrier.requireJob().1.pointee.context.unsafelyUnwrapped)
        try gate.pass()
      }
      try co_yield()
      let parked = cco_destroy(job.record.pointee.context.unsafelyUnwrapped)
      gate.open()
      try job.join()
      return [own.current, parked]
    }
    #expect(refusals == [CCO_HAS_LIVE_FRAMES, CCO_HAS_LIVE_FRAMES])
  }
}
