import Coroutine
import Testing

@Suite("Job.join", .timeLimit(.minutes(10)))
struct JoinTests {
  @Test func `any number of joiners, before and after the end, get the same result`() async throws {
    let seen = try await onSerialQueue {
      let gate = Gate()
      let job = co_launch {
        try gate.pass()
        return 5
      }
      let early = (0..<100).map { _ in co_launch { try job.join() } }
      try co_yield()
      gate.open()
      let before = try early.map { try $0.join() }
      let after = try (0..<100).map { _ in try job.join() }
      return Set(before + after)
    }
    #expect(seen == [5])
  }

  @Test func `every joiner gets the failure`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch { () throws -> Void in
        try co_yield()
        throw Oops("shared")
      }
      let joiners = (0..<5).map { _ in co_launch { outcome { try job.join() } } }
      return try joiners.map { try $0.join() } + [outcome { try job.join() }]
    }
    #expect(seen == Array(repeating: "Oops(shared)", count: 6))
  }

  @Test func `an outcome has the failure, which counts as observed, and throws the caller's cancellation only`()
    async throws
  {
    try await onSerialQueue {
      let job = co_launch { () throws -> Int in
        try co_yield()
        throw Oops("failed")
      }
      #expect(outcome(try job.outcome()) == "Oops(failed)")
      #expect(outcome(try co_launch { 3 }.outcome()) == "3")
      let gate = Gate()
      let long = co_launch { try gate.pass() }
      let waits = co_launch { outcome { try long.outcome() } }
      try co_yield()
      waits.cancel(Oops("enough"))
      #expect(try waits.join() == "Oops(enough)")
      #expect(!long.isCancelled)
      gate.open()
      let own = Locked<Job<String>?>(nil)
      own.current = co_launch { outcome { try own.current?.outcome() } }
      #expect(try own.current?.join() == "wouldDeadlock")
    }
  }

  @Test func `cancelAndJoin returns when the job's cleanup is done, with what became of the job`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let job = co_launch {
        defer { trace("cleaned up") }
        do { try waitForCancellation() } catch { co_shield { try? co_yield() } }
        throw Oops("late")
      }
      try co_yield()
      #expect(outcome(try job.cancelAndJoin()) == "Oops(late)")
      #expect(trace.all == ["cleaned up"])
      #expect(outcome(try co_launch { 1 }.cancelAndJoin(Oops("reason"))) == "Oops(reason)")
      let ended = co_launch { 2 }
      try ended.join()
      #expect(outcome(try ended.cancelAndJoin()) == "2")
    }
  }

  @Test func `joiners are served first come, first served`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let gate = Gate()
      let job = co_launch { try gate.pass() }
      let joiners = (1...5).map { n in
        co_launch {
          try job.join()
          trace("\(n)")
        }
      }
      try co_yield()
      gate.open()
      for joiner in joiners { try joiner.join() }
    }
    #expect(trace.all == ["1", "2", "3", "4", "5"])
  }

  @Test func `a cancelled joiner does not affect the job or the other joiners`() async throws {
    let seen = try await onSerialQueue {
      let gate = Gate()
      let job = co_launch {
        try gate.pass()
        return "kept on"
      }
      let quits = co_launch { try job.join() }
      let stays = co_launch { try job.join() }
      try co_yield()
      quits.cancel(Oops("quit"))
      let first = outcome { try quits.join() }
      let untouched = !job.isCancelled && !job.isFinished
      gate.open()
      return [first, "\(untouched)", outcome { try stays.join() }, outcome { try job.join() }]
    }
    #expect(seen == ["Oops(quit)", "true", "kept on", "kept on"])
  }

  @Test func `a job that joins itself throws, and can continue`() async throws {
    let seen = try await onSerialQueue {
      let handle = Promise<Job<Bool>>()
      let job = co_launch {
        let me = try co_await(handle)
        do {
          try me.join()
          return false
        } catch {
          return error is CoroutineError
        }
      }
      handle.fulfill(job)
      return try job.join()
    }
    #expect(seen)
  }

  @Test func `a job that awaits itself throws, as when it joins itself`() async throws {
    let seen = try await onSerialQueue {
      let handle = Promise<Job<Bool>>()
      let job = co_launch {
        let me = try co_await(handle)
        do {
          _ = try co_timeout(.seconds(60)) { try co_await(me) }
          return false
        } catch {
          return error is CoroutineError
        }
      }
      handle.fulfill(job)
      return try job.join()
    }
    #expect(seen)
  }

  // In a world every queue runs on the world's thread.
  @Test(.tags(.realClock)) func `a join across queues returns on the joiner's own queue`() async throws {
    let far = taggedQueue("far")
    let tags = try await onCoroutine(on: taggedQueue("near")) {
      let job = co_launch(on: far) {
        try co_delay(.milliseconds(1))
        return currentTag
      }
      return [try job.join(), currentTag]
    }
    #expect(tags == ["far", "near"])
  }

  @Test func `co_await on a job returns what join returns`() async throws {
    let seen = try await onCoroutine {
      let good = co_launch { 1 }
      let bad = co_launch { () throws -> Int in throw Oops("bad") }
      return [outcome { try co_await(good) }, outcome { try co_await(bad) }, outcome { try co_await(good) }]
    }
    #expect(seen == ["1", "Oops(bad)", "1"])
  }

  @Test func `joining a cancelled job throws the reason`() async throws {
    let seen = try await onSerialQueue {
      let plain = co_launch { try waitForCancellation() }
      let reasoned = co_launch { try waitForCancellation() }
      try co_yield()
      plain.cancel()
      reasoned.cancel(Oops("why"))
      return [outcome { try plain.join() }, outcome { try reasoned.join() }]
    }
    #expect(seen == ["CancellationError", "Oops(why)"])
  }
}
