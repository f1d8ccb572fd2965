import Coroutine
import Dispatch
import Testing

private enum Request {
  @TaskLocal static var user = "nobody"
}

@Suite("co_switch", .timeLimit(.minutes(10)))
struct SwitchTests {
  // In a world every queue runs on the world's thread.
  @Test(.tags(.realClock)) func `continues on the other queue from there on`() async throws {
    let other = taggedQueue("other")
    let tags = try await onCoroutine(on: taggedQueue("home")) {
      var tags = [currentTag]
      try co_switch(to: other)
      tags.append(currentTag)
      try co_yield()
      tags.append(currentTag)
      try co_delay(.milliseconds(1))
      tags.append(currentTag)
      tags.append(try co_blocking { currentTag })
      tags.append(currentTag)
      return tags
    }
    #expect(tags == ["home", "other", "other", "other", nil, "other"])
  }

  @Test func `moves back and forth any number of times`() async throws {
    let (near, far) = (taggedQueue("near"), taggedQueue("far"))
    let wrong = try await onCoroutine(on: near) {
      var wrong = 0
      for _ in 0..<1_000 {
        try co_switch(to: far)
        if currentTag != "far" { wrong += 1 }
        try co_switch(to: near)
        if currentTag != "near" { wrong += 1 }
      }
      return wrong
    }
    #expect(wrong == 0)
  }

  // What arrives takes longer than a time slice.
  @Test(.tags(.realClock)) func `coroutines that arrive all the time keep neither timers nor ready ones waiting`()
    async throws
  {
    let (busy, isOver) = (taggedQueue("busy"), Flag())
    let hoppers = (0..<3).map { index in
      let home = taggedQueue("home \(index)")
      return co_launch(on: home) {
        while !isOver.isRaised {
          try co_switch(to: busy)
          RealClock.block(for: .microseconds(400))
          try co_switch(to: home)
        }
      }
    }
    let ticks = try await onCoroutine(on: busy) {
      for _ in 0..<20 {
        try co_delay(.microseconds(100))
        try co_yield()
      }
      return 20
    }
    isOver.raise()
    for hopper in hoppers { try await hopper.value }
    #expect(ticks == 20)
  }

  @Test func `switching to the current queue just continues`() async throws {
    let home = taggedQueue("home")
    let tag = try await onCoroutine(on: home) {
      try co_switch(to: home)
      return currentTag
    }
    #expect(tag == "home")
  }

  @Test func `leaves the shared scheduler, and reaches the main queue`() async throws {
    let tags = try await onCoroutine {
      try co_switch(to: taggedQueue("other"))
      let first = currentTag
      try co_switch(to: .main)
      dispatchPrecondition(condition: .onQueue(.main))
      return first
    }
    #expect(tags == "other")
  }

  @Test func `what is launched afterwards inherits the new queue`() async throws {
    let tag = try await onCoroutine(on: taggedQueue("home")) {
      try co_switch(to: taggedQueue("other"))
      return try co_launch { currentTag }.join()
    }
    #expect(tag == "other")
  }

  @Test func `code after the switch is atomic with the other queue's blocks`() async throws {
    let other = taggedQueue("other")
    let cell = UnsafeCell()
    let jobs = (0..<20).map { n in
      co_launch(on: taggedQueue("home \(n)")) {
        for _ in 0..<50 {
          try co_switch(to: other)
          cell.increment()
          try co_yield()
          cell.increment()
        }
      }
    }
    for job in jobs { try await job.value }
    #expect(try await onBlock(of: other) { cell.count } == 20 * 50 * 2)
  }

  @Test func `local values and task-locals move with the coroutine`() async throws {
    let local = CoroutineLocal(default: 0)
    let seen = try await onCoroutine(on: taggedQueue("home")) {
      try local.withValue(7) {
        try Request.$user.withValue("alice") {
          try co_switch(to: taggedQueue("other"))
          return "\(local.value) \(Request.user)"
        }
      }
    }
    #expect(seen == "7 alice")
  }

  @Test func `a cancelled coroutine stays where it is`() async throws {
    let seen = try await onCoroutine(on: taggedQueue("home")) {
      let job = co_launch {
        _ = outcome { try waitForCancellation() }
        let thrown = outcome { try co_switch(to: taggedQueue("other")) }
        return [thrown, currentTag]
      }
      try co_yield()
      job.cancel()
      return try job.join()
    }
    #expect(seen == ["CancellationError", "home"])
  }

  @Test func `the old queue continues with others, and the coroutine can still be joined from there`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let gate = Gate()
      let job = co_launch {
        try co_switch(to: taggedQueue("other"))
        gate.open()
        return 1
      }
      try gate.pass()
      trace("gate")
      trace("joined \(try job.join())")
    }
    #expect(trace.all == ["gate", "joined 1"])
  }
}
