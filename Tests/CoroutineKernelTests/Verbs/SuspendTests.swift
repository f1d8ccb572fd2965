import Coroutine
import Testing

@Suite("co_suspend", .timeLimit(.minutes(10)))
struct SuspendTests {
  @Test func `start runs at once, before anything else on the queue`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      co_launch { trace("other") }
      try co_suspend { (done: Resumer<Void>) in
        trace("start")
        co_launch { done.resume(()) }
      }
      trace("resumed")
    }
    #expect(trace.all == ["start", "other", "resumed"])
  }

  @Test func `start runs on the coroutine's own stack: locals it changes are changed`() async throws {
    let seen = try await onSerialQueue {
      var count = 0
      let value: Int = try co_suspend { done in
        count += 1
        done.resume(count)
      }
      return [count, value]
    }
    #expect(seen == [1, 1])
  }

  @Test func `a resumer used before start returns ends the wait all the same`() async throws {
    let seen = try await onCoroutine {
      [
        outcome { try co_suspend { (done: Resumer<Int>) in done.resume(1) } },
        outcome { try co_suspend { (done: Resumer<Int>) in done.fail(Oops("now")) } },
      ]
    }
    #expect(seen == ["1", "Oops(now)"])
  }

  @Test func `a resumer used on another thread brings the coroutine back to its queue`() async throws {
    let seen = try await onCoroutine(on: taggedQueue("home")) {
      let value: String = try co_suspend { done in
        startThread { done.resume("from afar") }
      }
      return [value, currentTag]
    }
    #expect(seen == ["from afar", "home"])
  }

  @Test func `a result resumes with its value or its failure`() async throws {
    let seen = try await onCoroutine {
      [
        outcome { try co_suspend { (done: Resumer<Int>) in done.resume(with: .success(2)) } },
        outcome { try co_suspend { (done: Resumer<Int>) in done.resume(with: .failure(Oops("result"))) } },
      ]
    }
    #expect(seen == ["2", "Oops(result)"])
  }

  @Test func `of a value and an error the error wins, and neither is invalidCallback`() async throws {
    let seen = try await onCoroutine {
      [
        outcome { try co_suspend { (done: Resumer<Int>) in done(3, nil) } },
        outcome { try co_suspend { (done: Resumer<Int>) in done(nil, Oops("error")) } },
        outcome { try co_suspend { (done: Resumer<Int>) in done(3, Oops("both")) } },
        outcome { try co_suspend { (done: Resumer<Int>) in done(nil, nil) } },
      ]
    }
    #expect(seen == ["3", "Oops(error)", "Oops(both)", "invalidCallback"])
  }

  @Test func `the first use wins and later ones change nothing`() async throws {
    let seen = try await onSerialQueue {
      let kept = Locked<Resumer<Int>?>(nil)
      let first: Int = try co_suspend { done in
        kept.current = done
        done.resume(1)
        done.resume(2)
        done.fail(Oops("late"))
      }
      // A late use must not end a later wait.
      let second: Int = try co_suspend { done in
        kept.current?.resume(3)
        co_launch { done.resume(4) }
      }
      kept.current?(5, nil)
      try co_yield()
      return [first, second]
    }
    #expect(seen == [1, 4])
  }

  @Test func `a resumer released unused wakes the coroutine`() async throws {
    let seen = try await onSerialQueue {
      let kept = Locked<Resumer<Int>?>(nil)
      let later = co_launch { try co_suspend { (done: Resumer<Int>) in kept.current = done } }
      try co_yield()
      kept.current = nil
      return [outcome { try co_suspend { (_: Resumer<Int>) in } }, outcome { try later.join() }]
    }
    #expect(seen == ["abandoned", "abandoned"])
  }

  @Test func `a used resumer is released without a report`() async throws {
    let seen = try await onSerialQueue {
      let value: Int = try co_suspend { $0.resume(1) }
      try co_yield()
      try co_checkCancelled()
      return value
    }
    #expect(seen == 1)
  }

  @Test func `co_suspend throws the error of start, and the resumer then has no effect`() async throws {
    let seen = try await onSerialQueue {
      let kept = Locked<Resumer<Int>?>(nil)
      let thrown = outcome {
        try co_suspend { (done: Resumer<Int>) in
          kept.current = done
          throw Oops("start")
        }
      }
      kept.current?.resume(9)
      return [thrown, outcome { try co_suspend { (done: Resumer<Int>) in co_launch { done.resume(1) } } }]
    }
    #expect(seen == ["Oops(start)", "1"])
  }

  @Test func `optional outputs may be nil`() async throws {
    let seen = try await onCoroutine { () -> Int? in
      try co_suspend { $0.resume(nil) }
    }
    #expect(seen == nil)
  }

  // MARK: cancellation

  @Test func `onCancel runs once, and the late result is ignored`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      let kept = Locked<Resumer<Int>?>(nil)
      let job = co_launch {
        try co_suspend(onCancel: { trace("onCancel") }, { (done: Resumer<Int>) in kept.current = done })
      }
      try co_yield()
      job.cancel(Oops("stop"))
      job.cancel()
      let seen = outcome { try job.join() }
      kept.current?.resume(1)
      return [seen, outcome { try job.join() }]
    }
    #expect(seen == ["Oops(stop)", "Oops(stop)"])
    #expect(trace.all == ["onCancel"])
  }

  @Test func `onCancel does not run for a wait that has ended`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      let job = co_launch {
        let value = try co_suspend(onCancel: { trace("onCancel") }, { (done: Resumer<Int>) in done.resume(6) })
        try co_yield()
        return value
      }
      try co_yield()
      job.cancel()
      return outcome { try job.join() }
    }
    #expect(seen == "CancellationError")
    #expect(trace.all.isEmpty)
  }

  @Test func `a coroutine that is cancelled already never runs start, nor onCancel`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      let job = co_launch {
        _ = outcome { try waitForCancellation() }
        return outcome {
          try co_suspend(
            onCancel: { trace("onCancel") },
            { (done: Resumer<Int>) in
              trace("start")
              done.resume(1)
            }
          )
        }
      }
      try co_yield()
      job.cancel()
      return try job.join()
    }
    #expect(seen == "CancellationError")
    #expect(trace.all.isEmpty)
  }

  @Test func `onCancel may itself use the resumer`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      let kept = Locked<Resumer<Int>?>(nil)
      let job = co_launch {
        try co_suspend(
          onCancel: {
            trace("onCancel")
            kept.current?.fail(Oops("from onCancel"))
          },
          { (done: Resumer<Int>) in kept.current = done }
        )
      }
      try co_yield()
      job.cancel(Oops("reason"))
      return outcome { try job.join() }
    }
    #expect(seen == "Oops(reason)")
    #expect(trace.all == ["onCancel"])
  }
}
