import Testing

@testable import Coroutine

@Suite("Once", .timeLimit(.minutes(10)))
struct OnceTests {
  @Test func `the first body runs, and all callers get its result`() async throws {
    let trace = try await onSerialQueue {
      let (once, row, gate) = (Once<Int>(), Queueing(), Gate())
      #expect(once.value == nil)
      for number in 1...3 {
        try row.enqueue("done \(number)") {
          let value = try once.run {
            row.trace("ran \(number)")
            try gate.pass()
            return number
          }
          #expect(value == 1)
        }
      }
      gate.open()
      try row.settle()
      #expect(try once.run { 4 } == 1)
      #expect(once.value == 1)
      return row.trace.all
    }
    #expect(trace == ["ran 1", "done 1", "done 2", "done 3"])
  }

  @Test func `it runs once on every core`() async throws {
    let (once, cell) = (Once<Int>(), UnsafeCell())
    try await onCoroutine {
      try co_scope { scope in
        for _ in 0..<50 {
          scope.launch {
            let count = try once.run {
              cell.increment()
              try co_yield()
              return cell.count
            }
            #expect(count == 1)
          }
        }
      }
    }
    #expect(cell.count == 1)
  }

  @Test func `after a throw the next caller runs its own body`() async throws {
    let trace = try await onSerialQueue {
      let (once, row, gate) = (Once<Int>(), Queueing(), Gate())
      try row.enqueue("a") {
        _ = try once.run {
          try gate.pass()
          throw Oops("a")
        }
      }
      for number in 1...2 {
        try row.enqueue("\(number)") {
          let value = try once.run { number }
          #expect(value == 1)
        }
      }
      gate.open()
      try row.settle()
      return row.trace.all
    }
    #expect(trace == ["a: Oops(a)", "1", "2"])
  }

  @Test func `a kept failure is thrown to all callers, for ever`() async throws {
    let trace = try await onSerialQueue {
      let (once, row, gate) = (Once<Int>(afterFailure: .isKept), Queueing(), Gate())
      try row.enqueue("a") {
        _ = try once.run {
          try gate.pass()
          throw Oops("kept")
        }
      }
      try row.enqueue("b") { _ = try once.run { 2 } }
      gate.open()
      try row.settle()
      #expect(outcome { try once.run { 3 } } == "Oops(kept)")
      #expect(once.value == nil)
      return row.trace.all
    }
    #expect(trace == ["a: Oops(kept)", "b: Oops(kept)"])
  }

  @Test(arguments: [Once<Int>.Failure.retries, .isKept])
  func `a body that ends because its caller is cancelled does not count`(_ failure: Once<Int>.Failure) async throws {
    let trace = try await onSerialQueue {
      let (once, row) = (Once<Int>(afterFailure: failure), Queueing())
      let runner = try row.enqueue("runner") {
        _ = try once.run {
          try waitForCancellation()
          return 1
        }
      }
      try row.enqueue("next") {
        let value = try once.run { 2 }
        #expect(value == 2)
      }
      runner.cancel(Oops("reason"))
      try row.settle()
      #expect(once.value == 2)
      return row.trace.all
    }
    #expect(trace == ["runner: Oops(reason)", "next"])
  }

  @Test func `a body that calls its own Once gets wouldDeadlock`() async throws {
    try await onSerialQueue {
      let once = Once<Int>()
      #expect(outcome { try once.run { try once.run { 1 } } } == "wouldDeadlock")
      let value = try once.run { 2 }
      #expect(value == 2)
    }
  }
}
