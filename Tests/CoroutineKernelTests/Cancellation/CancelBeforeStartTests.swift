import Coroutine
import Dispatch
import Testing

@Suite("Cancelled before the start", .timeLimit(.minutes(10)))
struct CancelBeforeStartTests {
  @Test func `the body never runs, and join throws`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      let plain = co_launch { trace("plain") }
      let reasoned = co_launch { trace("reasoned") }
      plain.cancel()
      reasoned.cancel(Oops("early"))
      return [outcome { try plain.join() }, outcome { try reasoned.join() }, "\(plain.isFinished)"]
    }
    #expect(seen == ["CancellationError", "Oops(early)", "true"])
    #expect(trace.all.isEmpty)
  }

  @Test func `a lazy body never runs either`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      let job = co_launch(start: .lazy) { trace("lazy") }
      job.cancel(Oops("early"))
      return [outcome { try job.join() }, outcome { try co_await(job) }]
    }
    #expect(seen == ["Oops(early)", "Oops(early)"])
    #expect(trace.all.isEmpty)
  }

  @Test func `on a queue that cannot run yet, from outside any coroutine`() async throws {
    let trace = Trace()
    let queue = taggedQueue("asleep")
    queue.suspend()
    let job = co_launch(on: queue) { trace("body") }
    job.cancel(Oops("early"))
    queue.resume()
    #expect(await asyncOutcome { try await job.value } == "Oops(early)")
    #expect(trace.all.isEmpty)
  }

  @Test func `joiners that wait already get the reason`() async throws {
    let seen = try await onSerialQueue {
      let queue = taggedQueue("asleep")
      queue.suspend()
      let job = co_launch(on: queue) { 1 }
      let joiners = (0..<3).map { _ in co_launch { try job.join() } }
      try co_yield()
      job.cancel(Oops("early"))
      queue.resume()
      return joiners.map { joiner in outcome { try joiner.join() } }
    }
    #expect(seen == Array(repeating: "Oops(early)", count: 3))
  }

  @Test func `the other coroutines of the queue run as usual`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let jobs = (0..<6).map { n in co_launch { trace("\(n)") } }
      for n in [0, 2, 5] { jobs[n].cancel() }
      for job in jobs { _ = outcome { try job.join() } }
    }
    #expect(trace.all == ["1", "3", "4"])
  }

  @Test func `the captures of the body are released`() async throws {
    let released = Gate()
    let job = cancelled(holding: Tracked { released.open() })
    try await onCoroutine { try released.pass() }
    #expect(await asyncOutcome { try await job.value } == "CancellationError")
  }

  private func cancelled(holding held: Tracked) -> Job<Void> {
    let job = co_launch(start: .lazy) { held.use() }
    job.cancel()
    return job
  }
}
