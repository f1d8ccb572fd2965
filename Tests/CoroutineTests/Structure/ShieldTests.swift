import Coroutine
import Testing

@Suite("co_shield", .timeLimit(.minutes(1)))
struct ShieldTests {
  /// Runs `body` in a coroutine that was cancelled with `Oops("outer")` before.
  private func inCancelled(_ body: @escaping @Sendable () throws -> [String]) async throws -> [String] {
    try await onSerialQueue {
      let job = co_launch {
        _ = outcome { try waitForCancellation() }
        return try body()
      }
      try co_yield()
      job.cancel(Oops("outer"))
      return try job.join()
    }
  }

  @Test func `hides the cancellation from its body, so that cleanup can wait`() async throws {
    let seen = try await inCancelled {
      co_shield {
        [
          "\(co_isCancelled)",
          outcome { try co_checkCancelled() },
          outcome { try co_delay(.milliseconds(1)) },
          outcome { try co_launch { "launched" }.join() },
        ]
      }
    }
    #expect(seen == ["false", "()", "()", "launched"])
  }

  @Test func `at its end the cancellation is visible again`() async throws {
    let seen = try await inCancelled {
      let value = co_shield { 1 }
      return ["\(value)", "\(co_isCancelled)", outcome { try co_yield() }]
    }
    #expect(seen == ["1", "true", "Oops(outer)"])
  }

  @Test func `a cancellation that comes while the body waits does not end the wait`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      let gate = Gate()
      let job = co_launch {
        try co_shield {
          try gate.pass()
          trace("passed")
        }
        try co_yield()
      }
      try co_yield()
      job.cancel(Oops("outer"))
      for _ in 0..<3 { try co_yield() }
      trace("opening")
      gate.open()
      return outcome { try job.join() }
    }
    #expect(trace.all == ["opening", "passed"])
    #expect(seen == "Oops(outer)")
  }

  @Test func `shields nest, and the cancellation is visible after the outermost one`() async throws {
    let seen = try await inCancelled {
      let inside = co_shield {
        let inner = co_shield { outcome { try co_yield() } }
        return [inner, "\(co_isCancelled)", outcome { try co_yield() }]
      }
      return inside + [outcome { try co_yield() }]
    }
    #expect(seen == ["()", "false", "()", "Oops(outer)"])
  }

  @Test func `an error of its body passes through`() async throws {
    let seen = try await inCancelled {
      [outcome { try co_shield { throw Oops("cleanup") } }, outcome { try co_yield() }]
    }
    #expect(seen == ["Oops(cleanup)", "Oops(outer)"])
  }

  @Test func `deadlines within it still count`() async throws {
    let seen = try await inCancelled {
      co_shield {
        [
          outcome { try co_timeout(.milliseconds(2)) { try waitForCancellation() } },
          "\(co_isCancelled)",
        ]
      }
    }
    #expect(seen == ["TimeoutError", "false"])
  }

  @Test func `an enclosing deadline is hidden as well, and seen at the end`() async throws {
    let seen = try await onCoroutine {
      let trace = Trace()
      let end = outcome {
        try co_timeout(.milliseconds(2)) {
          try co_shield { try co_delay(.milliseconds(20)) }
          trace("after the shield")
          try co_yield()
          trace("never reached")
        }
      }
      return trace.all + [end]
    }
    #expect(seen == ["after the shield", "TimeoutError"])
  }

  @Test func `a scope within it is shielded with its children, and can still be cancelled itself`() async throws {
    let seen = try await inCancelled {
      let trace = Trace()
      try co_shield {
        try co_scope { scope in
          scope.launch {
            try co_delay(.milliseconds(1))
            trace("child")
          }
        }
        try co_scope { scope in
          let child = scope.launch { try waitForCancellation() }
          try co_yield()
          scope.cancel(Oops("inner"))
          trace(co_shield { outcome { try child.join() } })
        }
      }
      return trace.all
    }
    #expect(seen == ["child", "Oops(inner)"])
  }

  @Test func `in a coroutine that is not cancelled it changes nothing`() async throws {
    let seen = try await onCoroutine {
      [co_shield { outcome { try co_yield() } }, outcome { try co_yield() }, "\(co_isCancelled)"]
    }
    #expect(seen == ["()", "()", "false"])
  }
}
