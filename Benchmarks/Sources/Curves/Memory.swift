import Coroutine
import Driving
import Harness
import Synchronization

// What a parked coroutine holds in memory, by how many there are: each measured in a new process.

func addMemory(_ sizes: [Int], to suite: inout Suite) {
  for live in sizes {
    suite.figures([Figure("parked_bytes@\(live)", unit: "bytes")], 1, quick: 1, fresh: true) { _ in
      guard Memory.available > live * 6_000 else {
        complain("parked_bytes@\(live): skipped, \(live) coroutines need \(live * 6_000 >> 20) MiB of free memory")
        return []
      }
      let before = Memory.current.resident
      let held = try onQueue {
        let gate = Promise<Int>()
        let jobs = (0..<live).map { _ in co_launch { try co_await(gate) } }
        try co_yield()
        let held = Memory.current.resident - before
        gate.fulfill(1)
        expect(try jobs.reduce(0) { try $0 + $1.join() }, equals: live, "coroutines that were parked")
        return held
      }
      return [Double(held) / Double(live)]
    }
  }
}
