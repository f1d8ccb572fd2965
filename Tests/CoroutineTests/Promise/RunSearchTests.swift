import Dispatch
import Testing

@testable import Coroutine

@Suite("Promise: a search and the end of a run", .timeLimit(.minutes(10)))
struct RunSearchTests {
  /// The searching thread holds the lock of all walks, and the release of captures is code of the program.
  @Test func `a run that ends during a search keeps its captures until the search has left the lock`() async throws {
    try await onOwnThread {
      let (queue, mayEnd) = (DispatchQueue(label: "run"), DispatchSemaphore(value: 0))
      let (isInside, released) = (DispatchSemaphore(value: 0), Flag())
      let other = Promise<[Int]>()
      let result: Promise<[Int]>
      do {
        let held = Tracked { released.raise() }
        result = Promise<Int>.all(of: 0..<3, concurrently: 1, on: queue) { element in
          held.use()
          if element > 0 {
            isInside.signal()
            mayEnd.wait()
          }
          return .value(element)
        }
      }
      // The run takes its second element, so no step is pending.
      isInside.wait()
      let both = Promise.allSettled([other, result])
      var met: [Upstreams] = []
      var isReleased: Bool?
      _ = PromiseGraph.lock.pointee.withLock {
        // The last member comes first.
        PromiseGraph.find(from: both.ref, holding: &met) { promise in
          guard promise == other.ref else { return false }
          result.fulfill([7])
          mayEnd.signal()
          // The coroutine of the run ends meanwhile.
          for _ in 0..<5 { queue.sync {} }
          isReleased = released.isRaised
          return true
        }
      }
      #expect(isReleased == false)
      #expect(met.count == 2)
      met = []
      #expect(released.isRaised)
      other.cancel()
      both.ignore()
    }
  }
}
