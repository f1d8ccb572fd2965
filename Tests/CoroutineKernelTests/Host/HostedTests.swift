@_spi(Hosting) import Coroutine
import Dispatch
import Synchronization
import Testing

@Suite("A host of another library", .timeLimit(.minutes(10)))
struct HostedTests {
  @Test func `coroutines run on the host's thread, one at a time, whatever wakes them`() async throws {
    let loop = Loop()
    let host = HostedScheduler(loop)
    let channel = Channel<Int>(1)
    let isBusy = Locked(false)
    let wrong = Locked(0)
    @Sendable func check() {
      if !loop.isCurrentForCoroutines { wrong.withLock { $0 += 1 } }
      if isBusy.withLock({ exchange(&$0, with: true) }) { wrong.withLock { $0 += 1 } }
      isBusy.withLock { $0 = false }
    }
    let receivers = (0..<4).map { index in
      co_launch(on: host) {
        var sum = 0
        check()
        while let value = try channel.receive() {
          check()
          sum += value
          if index == 0 { try co_delay(.microseconds(50)) } else { try co_yield() }
          check()
        }
        return sum
      }
    }
    let senders = (0..<2).map { _ in
      co_launch { for value in 1...500 { try channel.send(value) } }
    }
    for sender in senders { try await sender.value }
    channel.close()
    var sum = 0
    for receiver in receivers { sum += try await receiver.value }
    #expect(sum == 2 * 125_250)
    #expect(wrong.current == 0)
  }

  // The host keeps the time, by the real clock.
  @Test(.tags(.realClock)) func `timers fire in order, and never early`() async throws {
    let host = HostedScheduler(Loop())
    let trace = Trace()
    // Set first, due last: the host's timer must be set anew for the others.
    let last = co_launch(on: host) { try co_delay(.seconds(3600)) }
    let start = DispatchTime.now()
    let jobs = [10, 20].map { milliseconds in
      co_launch(on: host) {
        try co_delay(.milliseconds(milliseconds))
        if DispatchTime.now() < start + .milliseconds(milliseconds) { trace("early") }
        trace("\(milliseconds)")
      }
    }
    for job in jobs { try await job.value }
    #expect(trace.all == ["10", "20"])
    last.cancel()
    #expect(await asyncOutcome { try await last.value } == "CancellationError")
    #expect(
      await asyncOutcome {
        try await co_launch(on: host) { try co_timeout(.milliseconds(1)) { try co_delay(.seconds(60)) } }.value
      }
        == "TimeoutError"
    )
  }

  @Test func `a drain is submitted only when the scheduler was idle`() async throws {
    let loop = Loop()
    let host = HostedScheduler(loop)
    try await co_launch(on: host) {
      let jobs = (0..<100).map { index in
        co_launch {
          try co_yield()
          return index
        }
      }
      for job in jobs { _ = try job.join() }
    }.value
    // In the coroutine, because the drain that runs it goes on after its end. One submission for the launch, and one
    // for each time slice that was used up.
    let (submitted, long) = try await co_launch(on: host) {
      (loop.submitted.load(ordering: .relaxed), loop.long.load(ordering: .relaxed))
    }.value
    #expect(submitted <= 2 + long)
  }

  @Test func `async code that is called continues on the host's thread, and its actors live there`() async throws {
    let loop = Loop()
    let host = HostedScheduler(loop)
    let isThere = try await co_launch(on: host) {
      try co_await {
        await Task.yield()
        return loop.isCurrentForCoroutines
      }
    }.value
    #expect(isThere)
    let executor = CoroutineExecutor(host)
    #expect(await Task(executorPreference: executor) { loop.isCurrentForCoroutines }.value)
    let isSame = try await co_launch(on: host) { CoroutineExecutor.current == executor }.value
    #expect(isSame)
  }

  @Test func `a binding in which the host drains is none of the coroutines' and the Tasks'`() async throws {
    let tenant = CoroutineLocal(default: "none")
    let inside = Atomic<Int>(0)
    let loop = Loop(around: { drain in
      tenant.withValue("host") {
        drain()
        if tenant.value == "host" { inside.wrappingAdd(1, ordering: .relaxed) }
      }
    })
    let host = HostedScheduler(loop)
    #expect(try await co_launch(on: host) { tenant.value }.value == "none")
    let seen = try await Task(executorPreference: CoroutineExecutor(host)) {
      [tenant.value, try await co_launch { tenant.value }.value]
    }
    .value
    #expect(seen == ["none", "none"])
    // The host has its binding again after each drain.
    while inside.load(ordering: .relaxed) == 0 { await Task.yield() }
  }

  @Test func `to block the host's thread for its own coroutine is refused`() async throws {
    let loop = Loop()
    let host = HostedScheduler(loop)
    let seen = Promise<String>()
    loop.execute {
      let job = co_launch(on: host) { 1 }
      seen.fulfill(outcome { try job.blockingWait() })
    }
    #expect(try await seen.value.contains("wouldDeadlock"))
  }

  @Test func `a coroutine visits a queue and comes back`() async throws {
    let loop = Loop()
    let host = HostedScheduler(loop)
    let seen = try await co_launch(on: host) {
      try co_switch(to: taggedQueue("visited"))
      let there = currentTag
      try co_switch(to: host)
      return "\(there ?? "") \(loop.isCurrentForCoroutines)"
    }.value
    #expect(seen == "visited true")
  }

  // The host keeps the time, by the real clock.
  @Test(.tags(.realClock))
  func `the host is released when neither the program nor a coroutine needs it`() async throws {
    let ended = Gate()
    do {
      let host = HostedScheduler(Loop(ended))
      try await co_launch(on: host) { try co_delay(.milliseconds(1)) }.value
    }
    try await onCoroutine { try ended.pass() }
  }

  @Test func `a handler that waits for the host keeps it until it has run`() async throws {
    let ended = Gate()
    let late = Promise<Int>()
    let handled = Promise<Bool>()
    do {
      let loop = Loop(ended)
      let host = HostedScheduler(loop)
      try await co_launch(on: host) {
        _ = late.then { [weak loop] (_: Int) -> Void in handled.fulfill(loop?.isCurrentForCoroutines == true) }
      }.value
    }
    // Neither the program nor a coroutine has the host now.
    late.fulfill(1)
    #expect(try await handled.value)
    try await onCoroutine { try ended.pass() }
  }

  @Test func `the end of a scheduler cancels what is live, and refuses what is launched later`() async throws {
    let host = HostedScheduler(Loop())
    let isWaiting = Gate()
    let live = co_launch(on: host) {
      isWaiting.open()
      try waitForCancellation()
    }
    try await isWaiting.value
    host.drain.end(Oops("over"))
    await #expect(throws: Oops("over")) { try await live.value }
    let hasRun = Flag()
    for start in [StartMode.queued, .immediate, .lazy] {
      let job = co_launch(on: host, start: start) { hasRun.raise() }
      let end = await asyncOutcome { try await job.value }
      #expect(end == "Oops(over)")
    }
    #expect(!hasRun.isRaised)
    #expect(!host.drain.hasLiveJobs)
  }
}
