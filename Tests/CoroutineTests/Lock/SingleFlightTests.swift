import Coroutine
import Testing

@Suite("SingleFlight", .timeLimit(.minutes(10)))
struct SingleFlightTests {
  @Test func `simultaneous callers with the same key share one flight, other keys have their own`() async throws {
    try await onSerialQueue {
      let (flights, trace) = (SingleFlight<String, Int>(), Trace())
      let gate = Gate()
      let ask: @Sendable (String, Int) -> Job<Int> = { key, number in
        co_launch {
          try flights.run(key) {
            trace("\(key) flies")
            try gate.pass()
            return number
          }
        }
      }
      let jobs = [ask("x", 1), ask("x", 2), ask("y", 3), ask("x", 4)]
      for _ in 0..<10 { try co_yield() }
      gate.open()
      #expect(try jobs.map { try $0.join() } == [1, 1, 3, 1])
      #expect(trace.all == ["x flies", "y flies"])
      // The result of an ended flight is not kept.
      #expect(try flights.run("x") { 5 } == 5)
    }
  }

  @Test func `a failure is thrown to all waiting callers, and is not kept`() async throws {
    try await onSerialQueue {
      let (flights, gate) = (SingleFlight<Int, Int>(), Gate())
      let jobs = (0..<3).map { number in
        co_launch {
          outcome {
            try flights.run(7) {
              try gate.pass()
              throw Oops("\(number)")
            }
          }
        }
      }
      for _ in 0..<10 { try co_yield() }
      gate.open()
      #expect(try jobs.map { try $0.join() } == ["Oops(0)", "Oops(0)", "Oops(0)"])
      #expect(try flights.run(7) { 1 } == 1)
    }
  }

  @Test func `the caller that started it may be cancelled: the flight continues for the others`() async throws {
    try await onSerialQueue {
      let (flights, gate, row) = (SingleFlight<Int, Void>(), Gate(), Queueing())
      let first = try row.enqueue("first") { try flights.run(1) { try gate.pass() } }
      try row.enqueue("second") { try flights.run(1) { Issue.record("a second flight") } }
      first.cancel(Oops("gone"))
      try row.settle()
      #expect(row.trace.all == ["first: Oops(gone)"])
      gate.open()
      try row.settle()
      #expect(row.trace.all == ["first: Oops(gone)", "second"])
    }
  }

  @Test func `when the last caller has left, the flight is cancelled, and the next caller starts a new one`()
    async throws
  {
    try await onSerialQueue {
      let (flights, row) = (SingleFlight<Int, Void>(), Queueing())
      let jobs = try ["a", "b"].map { label in
        try row.enqueue(label) {
          try flights.run(1) { row.trace("flight \(outcome(waitForCancellation))") }
        }
      }
      jobs[0].cancel()
      try row.settle()
      #expect(row.trace.all == ["a: CancellationError"])
      jobs[1].cancel()
      // As soon as it has left, even if the flight has not ended yet.
      while row.trace.count < 2 { try co_yield() }
      try flights.run(1) { row.trace("anew") }
      try row.settle()
      #expect(
        row.trace.all.sorted() == ["a: CancellationError", "anew", "b: CancellationError", "flight CancellationError"]
      )
    }
  }

  @Test func `a forgotten flight ends for its waiting callers, and new callers start a new one`() async throws {
    try await onSerialQueue {
      let (flights, gate) = (SingleFlight<Int, Int>(), Gate())
      let old = co_launch {
        try flights.run(1) {
          try gate.pass()
          return 1
        }
      }
      for _ in 0..<5 { try co_yield() }
      flights.forget(1)
      flights.forget(2)
      #expect(try flights.run(1) { 2 } == 2)
      gate.open()
      #expect(try old.join() == 1)
    }
  }

  @Test func `a body that asks for its own key gets wouldDeadlock`() async throws {
    try await onSerialQueue {
      let flights = SingleFlight<Int, Int>()
      #expect(outcome { try flights.run(1) { try flights.run(1) { 1 } } } == "wouldDeadlock")
      let value = try flights.run(1) { try flights.run(2) { 2 } }
      #expect(value == 2)
    }
  }

  /// A key that hashes like all others, and whose code suspends nothing but does run.
  private struct Clash: Hashable, Sendable {
    let number: Int
    func hash(into hasher: inout Hasher) { hasher.combine(0) }
  }

  @Test func `keys with the same hash have separate flights`() async throws {
    try await onCoroutine {
      let flights = SingleFlight<Clash, Int>()
      try co_scope { scope in
        for number in 0..<40 {
          scope.launch {
            let key = Clash(number: number % 8)
            let value = try flights.run(key) {
              try co_yield()
              return key.number
            }
            #expect(value == number % 8)
          }
        }
      }
    }
  }

  @Test func `nothing is kept of flights that have ended, were forgotten or lost all callers`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let flights = SingleFlight<Int, Tracked>()
      for number in 0..<3 {
        let held = Tracked("body \(number)", trace)
        let job = co_launch {
          _ = try flights.run(number) {
            held.use()
            if number > 0 { try waitForCancellation() }
            return Tracked("value \(number)", trace)
          }
        }
        for _ in 0..<5 { try co_yield() }
        if number == 2 { flights.forget(2) }
        job.cancel()
        _ = try? job.join()
        flights.forget(number)
      }
      for _ in 0..<5 { try co_yield() }
    }
    // Only the last caller can still cancel the forgotten flight.
    while trace.count < 4 {
      try Task.checkCancellation()
      await Task.yield()
    }
    #expect(trace.all.sorted() == ["released body 0", "released body 1", "released body 2", "released value 0"])
  }
}
