import Coroutine
import Dispatch
import Testing

@Suite("co_launch", .timeLimit(.minutes(10)))
struct LaunchTests {
  @Test func `a queued body never runs before co_launch returns`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let job = co_launch { trace("body") }
      trace("launched")
      try job.join()
    }
    #expect(trace.all == ["launched", "body"])
  }

  @Test func `a queued body does not interrupt the block of its queue that launches it`() async throws {
    let trace = Trace()
    let queue = taggedQueue("home")
    let job = try await onBlock(of: queue) {
      let job = co_launch(on: queue) { trace("body") }
      trace("launched")
      return job
    }
    try await job.value
    #expect(trace.all == ["launched", "body"])
  }

  @Test func `queued bodies on one queue start in the order of their launch`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let jobs = (1...20).map { n in co_launch { trace("\(n)") } }
      for job in jobs { try job.join() }
    }
    #expect(trace.all == (1...20).map(String.init))
  }

  @Test func `a job returns the result of its body`() async throws {
    #expect(try await co_launch { "done" }.value == "done")
  }

  @Test func `join throws the error of the body`() async throws {
    let seen = try await onCoroutine {
      let job = co_launch { () throws -> Int in throw Oops("body") }
      return outcome { try job.join() }
    }
    #expect(seen == "Oops(body)")
  }

  @Test func `without a queue a coroutine runs on the launching coroutine's queue`() async throws {
    let tag = try await onCoroutine(on: taggedQueue("parent")) {
      try co_launch { try co_launch { currentTag }.join() }.join()
    }
    #expect(tag == "parent")
  }

  @Test func `with a queue a coroutine runs on that queue`() async throws {
    let other = taggedQueue("other")
    let tags = try await onCoroutine(on: taggedQueue("parent")) {
      let child = try co_launch(on: other) {
        try co_yield()
        return currentTag
      }.join()
      return [child, currentTag]
    }
    #expect(tags == ["other", "parent"])
  }

  @Test func `outside a coroutine no queue means the shared scheduler, also in a block of a queue`() async throws {
    let queue = taggedQueue("mine")
    let tag = try await onBlock(of: queue) { co_launch { currentTag } }.value
    #expect(tag == nil)
  }

  @Test func `ids distinguish jobs`() async throws {
    let jobs = (0..<100).map { n in co_launch { n } }
    #expect(Set(jobs.map(\.id)).count == 100)
    for (n, job) in jobs.enumerated() { #expect(try await job.value == n) }
  }

  @Test func `a job knows its name, and has none unless given`() async throws {
    let named = co_launch(name: "login") {}
    let nameless = co_launch {}
    #expect(named.name == "login")
    #expect(nameless.name == nil)
    try await named.value
    try await nameless.value
    #expect(named.name == "login")
  }

  @Test func `isFinished becomes true at the end and not before`() async throws {
    let gate = Gate()
    let job = co_launch { try gate.pass() }
    #expect(!job.isFinished)
    gate.open()
    try await job.value
    #expect(job.isFinished)
    #expect(!job.isCancelled)
  }

  @Test func `a coroutine may launch while it is the only one that runs, to any depth`() async throws {
    @Sendable func depth(_ n: Int) throws -> Int {
      n == 0 ? 0 : try co_launch { try depth(n - 1) }.join() + 1
    }
    #expect(try await onCoroutine { try depth(200) } == 200)
  }

  @Test func `a body's captures are released when it has ended, even if the handle is kept`() async throws {
    let released = Gate()
    let job = launch(holding: Tracked { released.open() })
    try await onCoroutine { try released.pass() }
    try await job.value
  }

  private func launch(holding held: Tracked) -> Job<Void> {
    co_launch { held.use() }
  }
}
