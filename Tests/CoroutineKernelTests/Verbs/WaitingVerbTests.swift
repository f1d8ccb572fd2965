import Coroutine
import Dispatch
import Testing

@Suite("Every waiting verb", .timeLimit(.minutes(10)))
struct WaitingVerbTests {
  @Test(arguments: WaitingVerb.allCases)
  func `finishes at once if it need not wait`(verb: WaitingVerb) async throws {
    let trace = Trace()
    let props = try await WaitingVerb.Props()
    let seen = try await onCoroutine { outcome { try verb.callWhereItCouldFinishAtOnce(props, trace) } }
    #expect(seen == "()")
    #expect(trace.all == (verb.runsBody ? ["ran"] : []))
  }

  @Test(arguments: WaitingVerb.allCases)
  func `checks for cancellation on entry, also when it could finish at once`(verb: WaitingVerb) async throws {
    let trace = Trace()
    let props = try await WaitingVerb.Props()
    let seen = try await onSerialQueue {
      let job = co_launch {
        _ = outcome { try waitForCancellation() }
        return outcome { try verb.callWhereItCouldFinishAtOnce(props, trace) }
      }
      try co_yield()
      job.cancel(Oops("reason"))
      return try job.join()
    }
    #expect(seen == "Oops(reason)")
    #expect(trace.all.isEmpty)
  }

  @Test(arguments: WaitingVerb.parking)
  func `ends when its coroutine is cancelled, with the reason`(verb: WaitingVerb) async throws {
    let seen = try await onSerialQueue {
      let job = co_launch { outcome { try verb.park() } }
      // Some move to another queue, or start coroutines, before they wait.
      for _ in 0..<100 { try co_yield() }
      let waited = !job.isFinished
      job.cancel(Oops("reason"))
      return ["\(waited)", try job.join()]
    }
    #expect(seen == ["true", "Oops(reason)"])
  }

  @Test(arguments: WaitingVerb.parking)
  func `ends when it is cancelled from a thread at any moment`(verb: WaitingVerb) async throws {
    for _ in 0..<20 {
      let started = Gate()
      let job = co_launch {
        started.open()
        return outcome { try verb.park() }
      }
      try await onCoroutine { try started.pass() }
      startThread { job.cancel(Oops("thread")) }
      #expect(try await job.value == "Oops(thread)")
    }
  }

  @Test(.inWorlds, arguments: WaitingVerb.parking.filter(\.isSimulated))
  func `ends at a deadline: CancellationError inside, TimeoutError outside`(verb: WaitingVerb) throws {
    try Self.parkUntilDeadline(verb)
    #expect(worldTime == .milliseconds(3))
  }

  // No world has them: a real descriptor, and work that blocks a real thread.
  @Test(.tags(.realClock), arguments: WaitingVerb.parking.filter { !$0.isSimulated })
  func `ends at a deadline on the real clock too`(verb: WaitingVerb) async throws {
    try await onCoroutine { try Self.parkUntilDeadline(verb) }
  }

  private static func parkUntilDeadline(_ verb: WaitingVerb) throws {
    let trace = Trace()
    let seen = outcome {
      try co_timeout(.milliseconds(3)) {
        do {
          try verb.park()
        } catch {
          trace(name(of: error))
          throw error
        }
      }
    }
    #expect(trace.all == ["CancellationError"])
    #expect(seen == "TimeoutError")
  }

  @Test(arguments: WaitingVerb.allCases)
  func `works in a cancelled coroutine under a shield`(verb: WaitingVerb) async throws {
    let trace = Trace()
    let props = try await WaitingVerb.Props()
    let seen = try await onSerialQueue {
      let job = co_launch {
        _ = outcome { try waitForCancellation() }
        return co_shield { outcome { try verb.callWhereItCouldFinishAtOnce(props, trace) } }
      }
      try co_yield()
      job.cancel()
      return try job.join()
    }
    #expect(seen == "()")
  }

  // MARK: outside a coroutine

  @Test(arguments: WaitingVerb.allCases)
  func `throws on a plain thread, and runs nothing`(verb: WaitingVerb) async throws {
    let trace = Trace()
    let props = try await WaitingVerb.Props()
    let seen = try await onOwnThread { outcome { try verb.callWhereItCouldFinishAtOnce(props, trace) } }
    #expect(seen == "notInCoroutine")
    #expect(trace.all.isEmpty)
  }

  @Test(arguments: WaitingVerb.allCases)
  func `throws in async code`(verb: WaitingVerb) async throws {
    let trace = Trace()
    let props = try await WaitingVerb.Props()
    let seen = await Task { outcome { try verb.callWhereItCouldFinishAtOnce(props, trace) } }.value
    #expect(seen == "notInCoroutine")
    #expect(trace.all.isEmpty)
  }

  @Test(arguments: WaitingVerb.allCases)
  func `throws in a block of a queue whose coroutines are parked`(verb: WaitingVerb) async throws {
    let trace = Trace()
    let props = try await WaitingVerb.Props()
    let queue = taggedQueue("both")
    let gate = Gate()
    let parked = (0..<3).map { _ in co_launch(on: queue) { try gate.pass() } }
    let seen = try await onBlock(of: queue) { outcome { try verb.callWhereItCouldFinishAtOnce(props, trace) } }
    gate.open()
    for job in parked { try await job.value }
    #expect(seen == "notInCoroutine")
    #expect(trace.all.isEmpty)
  }

  @Test(arguments: WaitingVerb.allCases)
  func `throws in blocking work, in async code and in finally, which are no coroutines`(verb: WaitingVerb) async throws
  {
    let trace = Trace()
    let props = try await WaitingVerb.Props()
    let seen = try await onCoroutine {
      let last = Promise<String>()
      co_launch {}.finally { last.fulfill(outcome { try verb.callWhereItCouldFinishAtOnce(props, trace) }) }
      return [
        try co_blocking { outcome { try verb.callWhereItCouldFinishAtOnce(props, trace) } },
        try co_await { outcome { try verb.callWhereItCouldFinishAtOnce(props, trace) } },
        try co_await(last),
      ]
    }
    #expect(seen == Array(repeating: "notInCoroutine", count: 3))
    #expect(trace.all.isEmpty)
  }
}
