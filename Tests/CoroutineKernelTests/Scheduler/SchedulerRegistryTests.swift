import Dispatch
import Glibc
import Testing

@testable import Coroutine

@Suite("The scheduler of a queue", .timeLimit(.minutes(10)))
struct SchedulerRegistryTests {
  /// Without this, 1 to 2 % of the rounds found a scheduler that did not recognise its queue.
  @Test func `a scheduler that is found through its queue is complete, so wait throws wouldDeadlock`() async throws {
    let missed = Locked(0)
    try await onOwnThread {
      for round in 0..<400 {
        let queue = DispatchQueue(label: "coroutine.tests.first use \(round)")
        let isLooking = Flag()
        queue.async {
          isLooking.raise()
          // Another thread creates it, while this one searches.
          while true {
            guard let found = QueueHost.current else {
              sched_yield()
              continue
            }
            if !found.isCurrent { missed.withLock { $0 += 1 } }
            return
          }
        }
        while !isLooking.isRaised { sched_yield() }
        _ = QueueHost.scheduler(for: queue)
        queue.sync {}
      }
    }
    #expect(missed.current == 0)
  }

  /// ThreadSanitizer checks the publication by one thread and the lookup by the other.
  @Test func `two threads that first use one queue at once find the same one, without a race`() async throws {
    for round in 0..<60 {
      let queue = DispatchQueue(label: "coroutine.tests.shared first use \(round)")
      async let one = onOwnThread { try co_launch(on: queue) { 1 }.blockingWait() }
      async let other = onOwnThread { try co_launch(on: queue) { 2 }.blockingWait() }
      #expect(try await one + other == 3)
    }
  }
}
