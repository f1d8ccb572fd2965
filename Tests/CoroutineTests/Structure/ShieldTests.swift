import Coroutine
import Testing

@Suite("co_shield", .timeLimit(.minutes(10)))
struct ShieldTests {
  /// Runs `body` in a world, in a coroutine that was cancelled with `Oops("outer")` before.
  private func inCancelled(_ body: @escaping @Sendable () throws -> [String]) throws -> [String] {
    let job = co_launch {
      _ = outcome { try waitForCancellation() }
      return try body()
    }
    try settleWorld()
    job.cancel(Oops("outer"))
    return try job.join()
  }

  @Test(.inWorlds) func `hides the cancellation from its body, so that cleanup can wait`() throws {
    let seen = try inCancelled {
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

  @Test(.inWorlds) func `at its end the cancellation is visible again`() throws {
    let seen = try inCancelled {
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

  @Test(.inWorlds) func `shields nest, and the cancellation is visible after the outermost one`() throws {
    let seen = try inCancelled {
      let inside = co_shield {
        let inner = co_shield { outcome { try co_yield() } }
        // The delay ends by a timer, which a cancelled coroutine gets inside a shield alone.
        return [inner, "\(co_isCancelled)", outcome { try co_delay(.milliseconds(1)) }]
      }
      return inside + [outcome { try co_yield() }]
    }
    #expect(seen == ["()", "false", "()", "Oops(outer)"])
  }

  @Test(.inWorlds) func `an error of its body passes through`() throws {
    let seen = try inCancelled {
      [outcome { try co_shield { throw Oops("cleanup") } }, outcome { try co_yield() }]
    }
    #expect(seen == ["Oops(cleanup)", "Oops(outer)"])
  }

  @Test(.inWorlds) func `deadlines within it still count`() throws {
    let seen = try inCancelled {
      co_shield {
        [
          outcome { try co_timeout(.milliseconds(2)) { try waitForCancellation() } },
          "\(co_isCancelled)",
        ]
      }
    }
    #expect(seen == ["TimeoutError", "false"])
  }

  @Test(.inWorlds) func `an enclosing deadline is hidden as well, and seen at the end`() throws {
    let seen = try onWorldQueue {
      let trace = Trace()
      let end = outcome {
        try co_timeout(.milliseconds(2)) {
          try co_shield { try co_delay(.milliseconds(20)) }
          trace("after the shield at \(worldTime)")
          try co_yield()
          trace("never reached")
        }
      }
      return trace.all + [end]
    }
    #expect(seen == ["after the shield at 0.02 seconds", "TimeoutError"])
  }

  @Test(.inWorlds) func `a scope within it is shielded with its children, and can still be cancelled itself`() throws {
    let seen = try inCancelled {
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

  /// Waits in a shield for `woken`, launches a child in the scope outside the shield, and says how the child ended.
  private static func owner(_ woken: Promise<Void>) throws -> String {
    let end = Trace()
    try? co_scope { scope in
      try co_shield {
        try co_await(woken)
        let child = scope.launch { try co_delay(.seconds(60)) }
        end(outcome { try child.join() })
      }
    }
    return end.all.joined()
  }

  @Test func `a cancellation that finds the coroutine ready in a shield cancels the scope outside`() async throws {
    let woken = Promise<Void>()
    let queue = taggedQueue("shielded")
    let job = co_launch(on: queue) { try Self.owner(woken) }
    while try await onBlock(of: queue, { !dump(of: queue).contains("waiting for a promise") }) {}
    // While this block runs, the queue takes no message: it then finds the cancellation first, of a job that is ready.
    try await onBlock(of: queue) {
      job.cancel(Oops("outer"))
      woken.fulfill(())
    }
    #expect(try await job.value == "Oops(outer)")
  }

  @Test(.inWorlds) func `a cancellation reaches the scope outside a shield, whenever it comes`() throws {
    let woken = Promise<Void>()
    let job = co_launch { try Self.owner(woken) }
    let cancelling = co_launch { job.cancel(Oops("outer")) }
    let waking = co_launch { _ = woken.fulfill(()) }
    let end = outcome { try job.join() }
    try cancelling.join()
    try waking.join()
    #expect(end == "Oops(outer)")
    #expect(worldTime == .zero)
  }

  @Test func `in a coroutine that is not cancelled it changes nothing`() async throws {
    let seen = try await onCoroutine {
      [co_shield { outcome { try co_yield() } }, outcome { try co_yield() }, "\(co_isCancelled)"]
    }
    #expect(seen == ["()", "()", "false"])
  }
}
