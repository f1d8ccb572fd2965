import Coroutine
import Synchronization
import Testing

/// What docs/coming-from/go.md shows, compiled and run.
@Suite("Coming from Go", .inWorlds, .timeLimit(.minutes(10)))
struct GoTests {
  private func f() throws -> Int {
    try co_yield()
    return 1
  }

  @Test func `goroutines and their ends`() throws {
    let job = co_launch { try co_yield() }
    try job.join()
    try co_scope { scope in
      scope.launch { try co_yield() }
    }
    let places = FairSemaphore(8)
    try co_scope { scope in
      scope.launch { try places.withPermit { try co_yield() } }
      if places.tryAcquire() { places.release() }
    }
    let results = try co_map([1, 2, 3], limit: 8) { $0 * 2 }
    #expect(results == [2, 4, 6])
    try co_yield()
    #expect(CoroutineRuntime.liveCount >= 0 && CoroutineRuntime.workerCount > 0)
  }

  /// What a world does not simulate is compiled alone.
  private func outsideOfWorlds(_ job: Job<Int>) throws {
    let value = try job.blockingWait()
    print(try co_pinned { value }, CoroutineRuntime.dump(.stacks), CoroutineRuntime.deadlocks())
    print(CoroutineRuntime.metrics)
    CoroutineRuntime.startRecording()
    co_main { try co_yield() }
  }

  @Test func `ends`() throws {
    let (d, reason) = (Duration.seconds(1), TimeoutError())
    let job = co_launch { try co_delay(.seconds(10)) }
    job.cancel(reason)
    #expect(throws: TimeoutError.self) { try job.join() }
    let timer = Promise<Void>.after(d).then { Issue.record("too late") }
    timer.cancel()
    let requestID = CoroutineLocal(default: "none")
    let seen = requestID.withValue("r-17") { requestID.value }
    #expect(seen == "r-17")
    try co_scope { scope in
      let loop = scope.launch {
        while !co_isStopping {
          try co_select { co_stopping.onAwait { _ in } }
        }
      }
      try co_yield()
      scope.stop(within: d)
      try loop.join()
    }
  }

  @Test func `channels`() throws {
    #expect(Channel<Int>().capacity.limit == 0)
    let ch = Channel<Int>(2)
    let n = ch.capacity.limit
    #expect(n == 2 && Channel<Int>(.bounded(n)).capacity.limit == 2)
    let (input, output) = (ch.sendOnly, ch.receiveOnly)
    try input.send(1)
    try ch.send(2)
    #expect(ch.count == 2)
    let v = try output.receive()
    ch.close()
    try ch.forEach { value in #expect(value == 2) }
    while let value = try ch.receive() { Issue.record("\(value)") }
    #expect(v == 1)
  }

  @Test func `select and time`() throws {
    let (ch, d) = (Channel<Int>(1), Duration.milliseconds(5))
    let chosen = try co_select {
      ch.onReceive { _ in 1 }
        .onTimeout(d) { 2 }
    }
    #expect(chosen == 2)
    let isOpen = false
    let disabled = try co_select {
      if isOpen { ch.onReceive { _ in 1 } }
      SelectCase.otherwise { 2 }
    }
    #expect(disabled == 2)
    try ch.send(7)
    let received = try ch.receive() ?? 0
    print(received)
    let polled = try co_select {
      ch.onReceive { _ in 1 }
        .otherwise { 2 }
    }
    #expect(polled == 2)
    let ticker = co_ticker(every: d)
    try ticker.next()
    let start = co_now
    try co_delay(d)
    #expect(co_now - start == d)
    let ticked = try co_select { ticker.onTick { count in count } }
    #expect(ticked == 1)
  }

  @Test func `contexts`() throws {
    let (d, deadline) = (Duration.seconds(1), co_now + .seconds(2))
    let first = try co_timeout(d) { try f() }
    let second = try co_timeout(until: deadline) { try f() }
    let left = try co_timeout(d) { co_timeLeft }
    #expect(first == 1 && second == 1 && left == d && co_deadline == nil)
    let interrupt: @Sendable () -> Void = { Issue.record("cancelled") }
    try co_onCancel(interrupt) { try co_yield() }
    try co_shield { try co_yield() }
  }

  @Test func `locks`() throws {
    let count = ThreadMutex(0)
    count.withLock { $0 += 1 }
    let mutex = FairMutex()
    try mutex.withLock { try co_yield() }
    let lock = FairReadWriteLock()
    try lock.withReadLock { try co_yield() }
    let once = Once<Int>()
    let value = try once.run {
      try co_yield()
      return 1
    }
    let condition = Condition(mutex)
    let isReady = value == 1
    try mutex.withLock {
      try condition.wait { isReady }
    }
    final class Counter: Sendable {
      let number = Atomic(0)
    }
    let counter = Counter()
    co_launch { _ = counter.number.add(1, ordering: .relaxed) }
  }

  @Test func `sync and x`() throws {
    let (semaphore, key) = (FairSemaphore(10), "key")
    try semaphore.withPermit { try co_yield() }
    let flights = SingleFlight<String, Int>()
    let (value, isShared) = try flights.runShared(key) { 1 }
    #expect(value == 1 && !isShared)
    let limiter = RateLimiter(50, burst: 5)
    try limiter.acquire()
    let reservation = try limiter.reserve()
    try co_delay(until: reservation.instant)
    reservation.cancel()
    limiter.setRate(100)
    #expect(limiter.tokens == 3)
    let acquired = try co_select { limiter.onAcquire { true } }
    #expect(acquired)
  }
}
