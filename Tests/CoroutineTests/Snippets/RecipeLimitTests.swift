import Coroutine
import CoroutineTesting
import Testing

// What RecipeSnippets.swift promises. Each test fails if its recipe loses a part: a limit, a pause, an entry.

@Suite("What the recipes about limits show", .inWorlds, .timeLimit(.minutes(10)))
struct RecipeLimitTests {
  struct Failure: Error {}

  @Test func `a retry succeeds at the third attempt, and gives up at the last`() throws {
    var calls = 0
    let value = try retry(attempts: 5) {
      calls += 1
      if calls < 3 { throw Failure() }
      return calls
    }
    #expect(value == 3)
    calls = 0
    #expect(throws: Failure.self) {
      try retry(attempts: 2) {
        calls += 1
        throw Failure()
      }
    }
    #expect(calls == 2)
  }

  @Test func `the pauses of a retry grow`() throws {
    var calls: [CoroutineClock.Instant] = []
    #expect(throws: Failure.self) {
      try retry(attempts: 6) {
        calls.append(co_now)
        throw Failure()
      }
    }
    let pauses = zip(calls, calls.dropFirst()).map { $1 - $0 }
    #expect(pauses.count == 5)
    // Up to a half of each pause is left out at random.
    for (pause, most) in zip(pauses, [100, 200, 400, 800, 1_600]) {
      #expect(pause >= .milliseconds(most / 2) && pause <= .milliseconds(most))
    }
  }

  @Test func `a retry that is cancelled in its pause does not try again`() throws {
    let calls = Locked(0)
    let job = co_launch {
      try retry(attempts: 5) {
        calls.withLock { $0 += 1 }
        throw Failure()
      }
    }
    try settleWorld()
    job.cancel()
    #expect(throws: CancellationError.self) { try job.join() }
    #expect(calls.withLock { $0 } == 1)
  }

  @Test func `a limited service serves its burst and one second of calls, then refuses`() throws {
    let service = LimitedService()
    let began = co_now
    let jobs = (1...200).map { _ in co_launch { try service.call { co_now - began } } }
    let served = try co_allSettled(jobs).compactMap { try? $0.get() }
    #expect(served.count == 60)
    #expect(served.filter { $0 == .zero }.count == 10)
    #expect(served.max() == .seconds(1))
    // Those that were refused have left no reservation behind.
    let next = try service.call { co_now - began }
    #expect(next <= .milliseconds(1_020))
  }

  @Test func `calls that are cancelled before their turn give their tokens back`() throws {
    let service = LimitedService()
    let began = co_now
    let jobs = (1...60).map { _ in co_launch { try service.call { co_now - began } } }
    try settleWorld()
    for job in jobs where !job.isFinished { job.cancel() }
    let served = try co_allSettled(jobs).compactMap { try? $0.get() }
    #expect(served.count == 10)
    let next = try service.call { co_now - began }
    #expect(next == .milliseconds(20))
  }

  @Test func `a cache removes what has expired`() throws {
    let cache = Cache<Int, Int>(lifetime: .seconds(60)) { $0 }
    for key in 1...100 { #expect(try cache.value(for: key) == key) }
    try co_delay(.seconds(30))
    #expect(try cache.value(for: 101) == 101)
    #expect(cache.count == 101)
    try co_delay(.seconds(31))
    #expect(try cache.value(for: 1) == 1, "loaded anew")
    #expect(cache.count == 2)
    try co_delay(.seconds(61))
    #expect(try cache.value(for: 102) == 102)
    #expect(cache.count == 1)
  }

  @Test func `a cache loads a key once, and again after its lifetime`() throws {
    let loads = Locked(0)
    let cache = Cache<String, Int>(lifetime: .seconds(60)) { _ in
      try co_delay(.milliseconds(5))
      return loads.withLock { loads in
        loads += 1
        return loads
      }
    }
    let first = try co_map(1...10, limit: 10) { _ in try cache.value(for: "a") }
    #expect(first == Array(repeating: 1, count: 10))
    try co_delay(.seconds(59))
    let kept = try cache.value(for: "a")
    #expect(kept == 1)
    try co_delay(.seconds(2))
    let second = try cache.value(for: "a")
    #expect(second == 2)
  }

  @Test func `a cache loads a key once, also if a load ends between the look and the flight`() throws {
    let loads = Locked(0)
    let cache = Cache<String, Int>(lifetime: .seconds(60)) { _ in
      try co_yield()
      return loads.withLock { loads in
        loads += 1
        return loads
      }
    }
    let values = try co_map(1...6, limit: 6) { number in
      for _ in 0..<number { try co_yield() }
      return try cache.value(for: "a")
    }
    #expect(values == Array(repeating: 1, count: 6))
  }

  @Test func `a cache does not keep a failure`() throws {
    let loads = Locked(0)
    let cache = Cache<String, Int>(lifetime: .seconds(60)) { _ in
      let number = loads.withLock { loads in
        loads += 1
        return loads
      }
      if number == 1 { throw Failure() }
      return number
    }
    #expect(throws: Failure.self) { try cache.value(for: "a") }
    let second = try cache.value(for: "a")
    #expect(second == 2)
  }

  @Test func `a fan-out fetches eight pages at a time, and keeps the order`() throws {
    let open = Locked((now: 0, most: 0))
    let pages = (1...20).map { String(repeating: "a", count: $0) }
    let all = try fetchAll(pages) { page in
      open.withLock { $0 = ($0.now + 1, max($0.most, $0.now + 1)) }
      try co_delay(.milliseconds(30 - page.count))
      open.withLock { $0.now -= 1 }
      return page.count
    }
    #expect(all == Array(1...20))
    #expect(open.withLock { $0.most } == 8)
  }

  @Test func `one page of a fan-out may fail, and a cancellation ends it`() throws {
    let each = try fetchEach(["a", "bb"]) { page in
      if page == "a" { throw Failure() }
      return page.count
    }
    #expect(each == [nil, 2])
    let calls = Locked(0)
    let job = co_launch {
      try fetchEach(Array(repeating: "a", count: 20)) { _ in
        calls.withLock { $0 += 1 }
        try co_delay(.seconds(1))
        return 1
      }
    }
    try settleWorld()
    job.cancel()
    #expect(throws: CancellationError.self) { try job.join() }
    #expect(calls.withLock { $0 } == 8)
  }

  @Test func `a debounce passes the last change of each burst, when it is quiet`() throws {
    let changes = Channel<String>(10)
    let began = co_now
    let writer = co_launch {
      for burst in [["a", "ab"], ["abc"]] {
        for change in burst {
          try co_delay(.milliseconds(200))
          try changes.send(change)
        }
        try co_delay(.seconds(1))
      }
      try changes.send("abcd")
      changes.close()
    }
    var seen: [String] = []
    var times: [Duration] = []
    try debounce(changes, quiet: .milliseconds(300)) {
      seen.append($0)
      times.append(co_now - began)
    }
    try writer.join()
    // The last one is passed at once, because the channel has been closed.
    #expect(seen == ["ab", "abc", "abcd"])
    #expect(times == [.milliseconds(700), .milliseconds(1_900), .milliseconds(2_600)])
  }
}
