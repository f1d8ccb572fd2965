import Coroutine
import Dispatch
import Testing

@Suite("co_yield", .timeLimit(.minutes(10)))
struct YieldTests {
  @Test func `goes to the back of the ready queue`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let jobs = ["a", "b", "c"].map { name in
        co_launch {
          for round in 1...3 {
            trace("\(name)\(round)")
            try co_yield()
          }
        }
      }
      for job in jobs { try job.join() }
    }
    #expect(trace.all == ["a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3", "c3"])
  }

  @Test func `a yield of the only coroutine of a queue returns at once, a million times`() async throws {
    let yields = isSanitized ? 100_000 : 1_000_000
    let count = try await onSerialQueue {
      var count = 0
      for _ in 0..<yields {
        try co_yield()
        count += 1
      }
      return count
    }
    #expect(count == yields)
  }

  @Test func `two coroutines that yield for ever let the queue's other blocks run`() async throws {
    let queue = taggedQueue("busy")
    let flag = Flag()
    let jobs = (0..<2).map { _ in
      co_launch(on: queue) {
        while !flag.isRaised { try co_yield() }
      }
    }
    queue.async { flag.raise() }
    for job in jobs { try await job.value }
  }

  // In a world no time passes while anything can run.
  @Test(.tags(.realClock)) func `two coroutines that yield for ever let the queue's delays end`() async throws {
    try await onSerialQueue {
      let flag = Flag()
      let busy = (0..<2).map { _ in
        co_launch {
          while !flag.isRaised { try co_yield() }
        }
      }
      try co_delay(.milliseconds(5))
      flag.raise()
      for job in busy { try job.join() }
    }
  }

  @Test func `two coroutines that wake each other for ever let the queue's other blocks run`() async throws {
    let queue = taggedQueue("busy")
    let flag = Flag()
    let game = co_launch(on: queue) {
      try co_scope { scope in
        let ball = Locked<Resumer<Void>?>(nil)
        for _ in 0..<2 {
          scope.launch {
            while !flag.isRaised {
              try co_suspend { (mine: Resumer<Void>) in
                let other = ball.withLock { ball in
                  defer { ball = mine }
                  return ball
                }
                other?.resume(())
              }
            }
            ball.withLock { ball in ball.take() }?.resume(())
          }
        }
      }
    }
    queue.async { flag.raise() }
    try await game.value
  }

  @Test func `throws when cancelled, and the coroutine keeps its queue`() async throws {
    let seen = try await onCoroutine(on: taggedQueue("home")) {
      let job = co_launch {
        let first = outcome { while true { try co_yield() } }
        return [first, currentTag]
      }
      try co_yield()
      job.cancel()
      return try job.join()
    }
    #expect(seen == ["CancellationError", "home"])
  }
}
