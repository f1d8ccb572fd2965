import Dispatch
import Glibc
import Testing

@testable import Coroutine

@Suite("The pool of blocking threads", .timeLimit(.minutes(10)))
struct BlockingPoolTests {
  @Test func `has no thread before it is used`() {
    BlockingPool(limit: 4).expect(threads: 0, idle: 0, queued: 0)
  }

  @Test func `grows as long as no thread is idle, up to its limit, and queues the rest`() async throws {
    let watched = WatchedPool(limit: 3)
    let end = DispatchSemaphore(value: 0)
    let blocked = try await watched.block(5, running: 3, until: end)
    watched.pool.expect(threads: 3, idle: 0, queued: 2)
    try await blocked.end(by: end)
    try await watched.idled.wait(for: 3)
    watched.pool.expect(threads: 3, idle: 3, queued: 0)
  }

  @Test func `uses an idle thread rather than a new one`() async throws {
    let watched = WatchedPool(limit: 8)
    for round in 1...20 {
      try await onCoroutine { try watched.pool.run {} }
      try await watched.idled.wait(for: round)
    }
    watched.pool.expect(threads: 1, idle: 1, queued: 0)
  }

  // A thread of the pool waits for work in the kernel, with a limit of real time.
  @Test(.tags(.realClock))
  func `ends threads that were idle for longer than its idle timeout, and grows again`() async throws {
    let watched = WatchedPool(limit: 8, idleTimeout: .milliseconds(1))
    for round in 1...3 {
      let end = DispatchSemaphore(value: 0)
      try await watched.block(4, running: 4, until: end).end(by: end)
      try await watched.ended.wait(for: 4 * round)
      watched.pool.expect(threads: 0, idle: 0, queued: 0)
    }
  }

  @Test func `runs bodies in the order of the calls`() async throws {
    let watched = WatchedPool(limit: 1)
    let end = DispatchSemaphore(value: 0)
    let blocked = try await watched.block(1, running: 1, until: end)
    let trace = Trace()
    let jobs = try await watched.submit(50) { index in try watched.pool.run { trace("\(index)") } }
    try await blocked.end(by: end)
    for job in jobs { try await job.value }
    #expect(trace.all == (0..<50).map(String.init))
  }

  @Test func `drops a cancelled body that has not started, while the pool is still busy`() async throws {
    let watched = WatchedPool(limit: 1)
    let end = DispatchSemaphore(value: 0)
    let blocked = try await watched.block(1, running: 1, until: end)
    let trace = Trace()
    let jobs = try await watched.submit(3) { index in
      try watched.pool.run { [captured = Tracked("\(index)", trace)] in
        trace("ran \(index)")
        captured.use()
      }
    }
    jobs[1].cancel()
    #expect(await asyncOutcome { try await jobs[1].value } == "CancellationError")
    #expect(trace.all == ["released 1"])
    watched.pool.expect(threads: 1, idle: 0, queued: 2)
    try await blocked.end(by: end)
    for job in [jobs[0], jobs[2]] { try await job.value }
    #expect(trace.all == ["released 1", "ran 0", "released 0", "ran 2", "released 2"])
  }

  @Test func `a higher limit starts what is queued, a lower one ends idle threads, and busy ones later`() async throws {
    let watched = WatchedPool(limit: 1)
    let end = DispatchSemaphore(value: 0)
    let blocked = try await watched.block(4, running: 1, until: end)
    watched.pool.expect(threads: 1, idle: 0, queued: 3)
    watched.pool.setLimit(3)
    try await blocked.started.wait(for: 3)
    watched.pool.expect(threads: 3, idle: 0, queued: 1)
    watched.pool.setLimit(2)
    watched.pool.expect(threads: 3, idle: 0, queued: 1)
    try await blocked.end(by: end)
    try await watched.ended.wait(for: 1)
    try await watched.idled.wait(for: 2)
    watched.pool.expect(threads: 2, idle: 2, queued: 0)
    watched.pool.setLimit(0)
    try await watched.ended.wait(for: 2)
    watched.pool.expect(threads: 1, idle: 1, queued: 0)
    #expect(watched.pool.counts.limit == 1)
  }

  @Test func `names the limits to raise if no thread can be created, and works again later`() async throws {
    let watched = WatchedPool(limit: 4, start: refusing(3, of: 4))
    let seen = try await onCoroutine {
      var sentences: [String] = []
      for _ in 0..<3 {
        do {
          try watched.pool.run { preconditionFailure("ran without a thread") }
        } catch let error as CoroutineError where error == .outOfStacks {
          sentences.append(error.reason)
        }
      }
      return sentences + [try watched.pool.run { "ran" }]
    }
    #expect(seen.count == 4 && seen.last == "ran")
    for sentence in seen.prefix(3) {
      #expect(sentence.contains("error \(EAGAIN)") && sentence.contains("pids.max") && sentence.contains("ulimit -u"))
    }
  }

  @Test func `queues bodies for the existing threads if no further thread can be created`() async throws {
    let watched = WatchedPool(limit: 4, start: refusing(5, of: 6, after: 1))
    let end = DispatchSemaphore(value: 0)
    let blocked = try await watched.block(6, running: 1, until: end)
    watched.pool.expect(threads: 1, idle: 0, queued: 5)
    try await blocked.end(by: end)
    try await watched.idled.wait(for: 1)
    watched.pool.expect(threads: 1, idle: 1, queued: 0)
  }
}

/// Starts threads, but for `count` attempts after the first `first`; expects at most `all` attempts.
private func refusing(_ count: Int, of all: Int, after first: Int = 0) -> @Sendable (BlockingThread) -> Int32 {
  let attempts = Locked(0)
  return { thread in
    let attempt = attempts.withLock { attempts in
      attempts += 1
      return attempts
    }
    precondition(attempt <= all, "the pool tried to start a thread more often than it was given work")
    return attempt > first && attempt <= first + count ? EAGAIN : thread.start()
  }
}
