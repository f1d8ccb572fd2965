import CoroutineTesting
import Dispatch
import Glibc
import Testing

@testable import Coroutine

/// Each test waits for the end of the switch while the other queue is blocked.
@Suite("co_switch to a queue that is blocked", .timeLimit(.minutes(10)))
struct SwitchBlockedTests {
  @Test(.tags(.realClock), arguments: Ending.allCases)
  func `the coroutine that is cancelled throws where it was, and may go on there`(_ ending: Ending) async throws {
    let homes: [DispatchQueue?] = [taggedQueue("home"), nil]
    for home in homes {
      let blocked = try await BlockedQueue()
      let isSwitching = Flag()
      let job = co_launch(on: home) {
        let seen = outcome {
          try ending.giveUp {
            isSwitching.raise()
            try co_switch(to: blocked.queue)
          }
        }
        // Cancelled or not, it runs where it was.
        return "\(seen) \(currentTag ?? "worker") \(co_shield { outcome { try co_yield() } })"
      }
      while !isSwitching.isRaised { await Task.yield() }
      if ending == .jobCancel { job.cancel(Oops("job")) }
      #expect(try await job.value == "\(ending.error) \(home == nil ? "worker" : "home") ()")
      try await blocked.releaseAndSettle()
    }
  }

  /// The first cancellation is in the inbox of the queue that the coroutine has left, and that is blocked.
  @Test(.tags(.realClock)) func `a coroutine that has left a blocked queue is cancelled as any other`() async throws {
    let (home, away) = (taggedQueue("home"), taggedQueue("away"))
    let ledger = Ledger(on: away)
    let (isInside, mayReturn, isBack) = (Flag(), Flag(), Flag())
    let opened = Locked<Scope?>(nil)
    let job = co_launch(on: home) {
      let first = outcome {
        try co_scope { scope in
          opened.current = scope
          try co_isolated(ledger) { _ in
            isInside.raise()
            while !mayReturn.isRaised { sched_yield() }
          }
          try co_checkCancelled()
        }
      }
      let second = outcome { try co_timeout(.milliseconds(10)) { try waitForCancellation() } }
      isBack.raise()
      return "\(first) \(second) \(outcome { try waitForCancellation() })"
    }
    while !isInside.isRaised { await Task.yield() }
    let blockedHome = try await BlockedQueue(home)
    mayReturn.raise()
    // It waits, on the actor's queue, for its own.
    while !job.record.seemsWaiting { await Task.yield() }
    let blockedAway = try await BlockedQueue(away)
    opened.current?.cancel(Oops("scope"))
    blockedHome.release()
    while !isBack.isRaised { await Task.yield() }
    job.cancel(Oops("job"))
    #expect(try await job.value == "Oops(scope) TimeoutError Oops(job)")
    try await blockedAway.releaseAndSettle()
  }

  /// The flags of the scope's frame are set, and the interrupt waits behind the block of the queue.
  @Test func `a coroutine whose scope was cancelled does not arrive, although its own queue is blocked`() async throws {
    let home = taggedQueue("home")
    let blockedAway = try await BlockedQueue(taggedQueue("away"))
    let isSwitching = Flag()
    let opened = Locked<Scope?>(nil)
    let job = co_launch(on: home) {
      let seen = outcome {
        try co_scope { scope in
          opened.current = scope
          isSwitching.raise()
          try co_switch(to: blockedAway.queue)
        }
      }
      return "\(seen) \(currentTag ?? "nowhere")"
    }
    while !isSwitching.isRaised { await Task.yield() }
    // Behind the drain in which the coroutine has left its stack, and sent the arrival.
    let blockedHome = try await BlockedQueue(home)
    opened.current?.cancel(Oops("scope"))
    try await blockedAway.releaseAndSettle()
    blockedHome.release()
    #expect(try await job.value == "Oops(scope) home")
  }

  @Test func `the main queue`() async throws {
    let blocked = try await BlockedQueue(.main)
    let isSwitching = Flag()
    let job = co_launch(on: taggedQueue("home")) {
      isSwitching.raise()
      return "\(outcome { try co_switch(to: .main) }) \(currentTag ?? "nowhere")"
    }
    while !isSwitching.isRaised { await Task.yield() }
    job.cancel()
    #expect(try await job.value == "CancellationError home")
    try await blocked.releaseAndSettle()
  }

  @Test func `the loop of another library, and from there`() async throws {
    let loop = Loop()
    let host = HostedScheduler(loop)
    let isBlocked = Gate()
    let release = DispatchSemaphore(value: 0)
    let fromThere = co_launch(on: host) {
      let blocked = taggedQueue("blocked")
      blocked.suspend()
      defer { blocked.resume() }
      let seen = outcome { try co_timeout(.milliseconds(5)) { try co_switch(to: blocked) } }
      return "\(seen) \(loop.isCurrentForCoroutines)"
    }
    #expect(try await fromThere.value == "TimeoutError true")
    loop.execute {
      isBlocked.open()
      release.wait()
    }
    try await isBlocked.value
    let seen = try await onCoroutine(on: taggedQueue("home")) {
      "\(outcome { try co_timeout(.milliseconds(5)) { try co_switch(to: host) } }) \(currentTag ?? "nowhere")"
    }
    #expect(seen == "TimeoutError home")
    release.signal()
  }

  @Test func `a queue whose coroutine blocks its thread, when the other one arrives behind it`() async throws {
    let away = taggedQueue("away")
    away.suspend()
    let (isInside, release) = (Gate(), DispatchSemaphore(value: 0))
    let home = taggedQueue("home")
    let blocker = co_launch(on: home) {
      try co_switch(to: away)
      isInside.open()
      release.wait()
    }
    let isSwitching = Flag()
    let job = co_launch(on: home) {
      isSwitching.raise()
      return "\(outcome { try co_switch(to: away) }) \(currentTag ?? "nowhere")"
    }
    while !isSwitching.isRaised { await Task.yield() }
    // The coroutine has left its queue, so its arrival is behind the blocker's.
    try await onBlock(of: home) {}
    away.resume()
    try await isInside.value
    job.cancel()
    #expect(try await job.value == "CancellationError home")
    release.signal()
    try await blocker.value
  }

  @Test func `a later switch of the same coroutine arrives, and the given up one does not`() async throws {
    let blocked = try await BlockedQueue()
    let isLast = Flag()
    let job = co_launch(on: taggedQueue("home")) {
      var seen: [String] = []
      for _ in 0..<3 {
        seen.append(outcome { try co_timeout(.milliseconds(2)) { try co_switch(to: blocked.queue) } })
        seen.append(currentTag ?? "")
      }
      isLast.raise()
      try co_switch(to: blocked.queue)
      return seen + [currentTag ?? ""]
    }
    while !isLast.isRaised { await Task.yield() }
    blocked.release()
    let refused = Array(repeating: ["TimeoutError", "home"], count: 3).flatMap { $0 }
    #expect(try await job.value == refused + ["blocked"])
  }

  @Test func `the coroutine may have ended when the queue comes to it`() async throws {
    let blocked = try await BlockedQueue()
    let released = Gate()
    do {
      let held = Tracked { released.open() }
      let job = co_launch(on: taggedQueue("home")) {
        defer { held.use() }
        return outcome { try co_timeout(.milliseconds(2)) { try co_switch(to: blocked.queue) } }
      }
      #expect(try await job.value == "TimeoutError")
    }
    try await released.value
    try await blocked.releaseAndSettle()
  }

  /// What stays in the queue, until that runs, is the arrival alone.
  @Test(.tags(.realClock), arguments: ["co_switch", "co_isolated"])
  func `a job that has given up is released with its result, although the queue stays blocked`(
    _ verb: String
  ) async throws {
    let blocked = try await BlockedQueue()
    let ledger = Ledger(on: blocked.queue)
    let released = Gate()
    do {
      let job = co_launch(on: taggedQueue("home")) { () -> Tracked in
        _ = try? co_timeout(.milliseconds(2)) {
          switch verb {
          case "co_switch": try co_switch(to: blocked.queue)
          default: try co_isolated(ledger) { _ in }
          }
        }
        return Tracked { released.open() }
      }
      try await job.value.use()
    }
    try await released.value
    try await blocked.releaseAndSettle()
  }

  @Test func `coroutines arrive in the order of their switches, and begin in that of their launches`() async throws {
    let away = taggedQueue("away")
    away.suspend()
    let trace = Trace()
    try await onCoroutine(on: taggedQueue("home")) {
      for number in 0..<8 {
        if number.isMultiple(of: 2) {
          co_launch {
            try co_switch(to: away)
            trace("\(number)")
          }
          try co_yield()
        } else {
          co_launch(on: away) { trace("\(number)") }
        }
      }
    }
    away.resume()
    while trace.count < 8 { await Task.yield() }
    #expect(trace.all.filter { ["0", "2", "4", "6"].contains($0) } == ["0", "2", "4", "6"])
    #expect(trace.all.filter { ["1", "3", "5", "7"].contains($0) } == ["1", "3", "5", "7"])
  }

  @Test(.tags(.realClock)) func `a deadline that began before the switch ends waits after it`() async throws {
    let seen = try await onCoroutine(on: taggedQueue("home")) {
      var limit = Duration.milliseconds(20)
      while true {
        var hasArrived = false
        let seen = outcome {
          try co_timeout(limit) {
            try co_switch(to: taggedQueue("away"))
            hasArrived = true
            try co_delay(.seconds(600))
          }
        }
        // On a busy machine the deadline ends the switch itself, on the old queue: that is another test.
        if hasArrived || limit > .seconds(60) { return "\(seen) \(currentTag ?? "nowhere")" }
        limit *= 2
      }
    }
    #expect(seen == "TimeoutError away")
  }

  @Test func `the old queue may be released when its only coroutine has left, under a deadline`() async throws {
    let (isThere, go) = (Gate(), Gate())
    weak var home: DispatchQueue?
    let job: Job<String>
    do {
      let queue = DispatchQueue(label: "coroutine.tests.left")
      home = queue
      job = co_launch(on: queue) {
        try co_timeout(.seconds(600)) {
          try co_switch(to: taggedQueue("away"))
          isThere.open()
          try go.pass()
          return currentTag ?? ""
        }
      }
    }
    try await isThere.value
    while home != nil { await Task.yield() }
    go.open()
    #expect(try await job.value == "away")
  }

  @Test func `a coroutine that started immediately on another thread`() async throws {
    let blocked = try await BlockedQueue()
    let job = co_launch(on: taggedQueue("home"), start: .immediate) {
      "\(outcome { try co_switch(to: blocked.queue) }) \(currentTag ?? "nowhere")"
    }
    job.cancel()
    #expect(try await job.value == "CancellationError home")
  }

  @Test func `the dump says what the coroutine waits for`() async throws {
    let blocked = try await BlockedQueue()
    let home = taggedQueue("home")
    let job = co_launch(on: home, name: "moving house") { try co_switch(to: blocked.queue) }
    while !dump(of: home).contains("\"moving house\" waiting to continue on another queue") { await Task.yield() }
    blocked.release()
    try await job.value
  }

  @Test(arguments: [Ending.deadline, .jobCancel, .scopeCancel])
  func `in every order, the coroutine continues on one of the two queues`(_ ending: Ending) throws {
    let outcomes = Locked<Set<String>>([])
    let found = explore(.exhaustive(preemptions: 2)) {
      let (near, far) = (taggedQueue("near"), taggedQueue("far"))
      // Keeps the far queue for a while.
      co_launch(on: far) { co_point() }
      let where_ = Locked("")
      let job = co_launch(on: near) {
        let home = CoroutineExecutor.current
        defer { where_.current = CoroutineExecutor.current == home ? "near" : "far" }
        try ending.giveUp {
          if ending == .deadline { try co_delay(.milliseconds(20)) }
          if ending == .scopeCancel { try co_delay(.milliseconds(5)) }
          try co_switch(to: far)
        }
      }
      if ending == .jobCancel { co_launch { job.cancel(Oops("job")) } }
      let seen = outcome { try job.join() }
      outcomes.withLock { _ = $0.insert("\(seen) \(where_.current)") }
    }
    #expect(found.failure == nil, "\(found.failure.map { "\($0)" } ?? "")")
    let error = ending.error
    #expect(outcomes.current.isSubset(of: ["() far", "\(error) near", "\(error) far", "\(error) "]))
    #expect(ending == .deadline || outcomes.current.contains("() far"))
  }
}
