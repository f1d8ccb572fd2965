import Coroutine
import Driving
import Harness

// Waiting for what is known already: it parks nobody and must not look like a wait.

func addSettled(to suite: inout Suite) {
  suite.row("await_settled_job", 5_000_000) { count in
    let sum = try onQueue {
      let job = co_launch { 3 }
      try job.join()
      return try sumOfAwaits(count, job)
    }
    expect(sum, equals: 3 * count, "sum of the results")
  }

  suite.row("await_settled", 5_000_000) { count in
    let promise = Promise.value(3)
    let sum = try onQueue { try sumOfAwaits(count, promise) }
    expect(sum, equals: 3 * count, "sum of the results")
  }
}

/// Not inlined, so that the optimiser cannot find out that every await answers the same.
@inline(never)
private func sumOfAwaits(_ count: Int, _ job: Job<Int>) throws -> Int {
  var sum = 0
  for _ in 0..<count { sum &+= try co_await(job) }
  return sum
}

@inline(never)
private func sumOfAwaits(_ count: Int, _ promise: Promise<Int>) throws -> Int {
  var sum = 0
  for _ in 0..<count { sum &+= try co_await(promise) }
  return sum
}
