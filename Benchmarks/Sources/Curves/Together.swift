import Coroutine
import Dispatch
import Driving
import Harness

// The same operations done by all that live, in turn: beyond some ten thousand no processor's cache holds what they
// touch, which is one page of stack and one record each, so this is a curve of memory more than of code.

func addTogether(_ sizes: [Int], to suite: inout Suite) {
  for live in sizes {
    measured("yield_by_all", live, 2_000_000, &suite) { count in
      let rounds = max(1, count / live)
      let turns = Counter()
      let taken = try onQueue {
        let gate = Promise<Void>()
        let jobs = (0..<live).map { _ in
          co_launch {
            try co_await(gate)
            for _ in 0..<rounds {
              _ = turns.increment()
              try co_yield()
            }
          }
        }
        try co_yield()
        gate.fulfill(())
        let started = Clock.processor.now
        for job in jobs { try job.join() }
        return Clock.processor.now - started
      }
      expect(turns.finish(), equals: rounds * live, "turns taken")
      return Double(taken) / Double(rounds * live)
    }
    measured("pingpong_by_all", live, 2_000_000, &suite) { count in
      let pairs = live / 2
      let rounds = max(1, count / pairs)
      let gate = Promise<Void>()
      return try onQueue {
        let jobs = (0..<pairs).map { _ in
          let (there, back) = (Channel<Int>(), Channel<Int>())
          co_launch { while let value = try there.receive() { try back.send(value) } }
          return co_launch {
            try co_await(gate)
            var sum = 0
            for value in 0..<rounds {
              try there.send(value)
              sum += try back.receive() ?? 0
            }
            there.close()
            return sum
          }
        }
        try co_yield()
        gate.fulfill(())
        let started = Clock.processor.now
        let sum = try jobs.reduce(0) { try $0 + $1.join() }
        let taken = Clock.processor.now - started
        expect(sum, equals: pairs * (rounds * (rounds - 1) / 2), "sum of what came back")
        return Double(taken) / Double(pairs * rounds)
      }
    }
  }
}
