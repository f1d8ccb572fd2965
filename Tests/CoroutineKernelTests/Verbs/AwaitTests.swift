import Coroutine
import Testing

private enum Request {
  @TaskLocal static var user = "nobody"
}

@Suite("co_await", .timeLimit(.minutes(10)))
struct AwaitTests {
  // MARK: awaitables

  @Test func `a settled promise is returned at once, a pending one when it settles`() async throws {
    let seen = try await onSerialQueue {
      let later = Promise<Int>()
      co_launch { later.fulfill(2) }
      return [try co_await(Promise.value(1)), try co_await(later), try co_await(later)]
    }
    #expect(seen == [1, 2, 2])
  }

  @Test func `a rejected promise throws what it was rejected with`() async throws {
    let seen = try await onSerialQueue {
      let later = Promise<Int>()
      co_launch { later.reject(Oops("later")) }
      return [outcome { try co_await(Promise<Int>.failure(Oops("now"))) }, outcome { try co_await(later) }]
    }
    #expect(seen == ["Oops(now)", "Oops(later)"])
  }

  @Test func `a cancelled waiter does not affect the others`() async throws {
    let seen = try await onSerialQueue {
      let promise = Promise<Int>()
      let quits = co_launch { try co_await(promise) }
      let stays = co_launch { try co_await(promise) }
      try co_yield()
      quits.cancel(Oops("quit"))
      let first = outcome { try quits.join() }
      promise.fulfill(4)
      return [first, outcome { try stays.join() }]
    }
    #expect(seen == ["Oops(quit)", "4"])
  }

  // MARK: async code

  @Test func `async code returns its value or its failure to the coroutine`() async throws {
    let seen = try await onCoroutine {
      [
        outcome {
          try co_await {
            await Task.yield()
            return 5
          }
        },
        outcome {
          try co_await { () async throws -> Int in
            await Task.yield()
            throw Oops("async")
          }
        },
      ]
    }
    #expect(seen == ["5", "Oops(async)"])
  }

  @Test func `the queue is free while async code runs, and the coroutine comes back to it`() async throws {
    let trace = Trace()
    let tag = try await onCoroutine(on: taggedQueue("home")) {
      let gate = Gate()
      co_launch {
        trace("meanwhile")
        gate.open()
      }
      let waiter = co_launch { try gate.pass() }
      try co_await { try await waiter.value }
      trace("back")
      return currentTag
    }
    #expect(trace.all == ["meanwhile", "back"])
    #expect(tag == "home")
  }

  @Test func `async code sees the coroutine's task-locals`() async throws {
    let seen = try await onCoroutine {
      try Request.$user.withValue("alice") {
        try co_await { Request.user }
      }
    }
    #expect(seen == "alice")
  }

  @Test func `cancelling the coroutine cancels the task`() async throws {
    let seen = try await onCoroutine {
      let started = Gate()
      let taskSawIt = Gate()
      let job = co_launch {
        try co_await {
          // Only after Task.isCancelled: a handler whose operation has ended before it is called is not called.
          await withTaskCancellationHandler {
            started.open()
            while taskSawIt.isPending { await Task.yield() }
          } onCancel: {
            taskSawIt.open()
          }
        }
      }
      try started.pass()
      job.cancel()
      try taskSawIt.pass()
      return outcome { try job.join() }
    }
    #expect(seen == "CancellationError")
  }

  @Test func `the coroutine throws the reason it was cancelled for`() async throws {
    let seen = try await onCoroutine {
      let started = Gate()
      let job = co_launch {
        try co_await {
          started.open()
          try await Task.sleep(for: .seconds(3600))
        }
      }
      try started.pass()
      job.cancel(Oops("why"))
      return outcome { try job.join() }
    }
    #expect(seen == "Oops(why)")
  }

  @Test func `a task that cancels itself throws CancellationError in the coroutine`() async throws {
    let seen = try await onCoroutine {
      outcome {
        try co_await {
          withUnsafeCurrentTask { $0?.cancel() }
          try Task.checkCancellation()
        }
      }
    }
    #expect(seen == "CancellationError")
  }

  @Test func `cancellation passes through async code to the awaited coroutine`() async throws {
    let seen = try await onCoroutine {
      let started = Gate()
      let inner = co_launch { try waitForCancellation() }
      let outer = co_launch {
        try co_await {
          started.open()
          try await inner.value
        }
      }
      try started.pass()
      outer.cancel()
      return [outcome { try outer.join() }, outcome { try inner.join() }, "\(inner.isCancelled)"]
    }
    #expect(seen == ["CancellationError", "CancellationError", "true"])
  }

  @Test func `a cancelled coroutine does not start the task at all`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      let job = co_launch {
        _ = outcome { try waitForCancellation() }
        try co_await { trace("task") }
      }
      try co_yield()
      job.cancel()
      return outcome { try job.join() }
    }
    #expect(seen == "CancellationError")
    #expect(trace.all.isEmpty)
  }
}
