import Coroutine

// The code of the recipes in Sources/Coroutine/Coroutine.docc/Recipes. This file: limits and repetition.
// RecipeLimitTests.swift runs it in worlds.

// MARK: RetryWithBackOff.md

/// Runs `body` until it succeeds, at most `attempts` times, with a growing pause between two attempts.
func retry<Output>(attempts: Int, _ body: () throws -> Output) throws -> Output {
  let backoff = Backoff.exponential(from: .milliseconds(100), limit: .seconds(10))
  var failed = 0
  while true {
    do {
      return try body()
    } catch {
      failed += 1
      if failed >= attempts { throw error }
      try co_delay(backoff.pause(after: failed))
    }
  }
}

// MARK: RateLimit.md

struct TooManyRequests: Error {}

/// Lets 50 calls a second pass, in order, and refuses a call that would wait for more than a second.
final class LimitedService: Sendable {
  private let limiter = RateLimiter(50, per: .seconds(1), burst: 10)

  func call<Output>(_ body: () throws -> Output) throws -> Output {
    let reservation = try limiter.reserve()
    if reservation.timeLeft > .seconds(1) {
      reservation.cancel()
      throw TooManyRequests()
    }
    do {
      try co_delay(until: reservation.instant)
    } catch {
      reservation.cancel()  // a call that is cancelled before its turn gives its token back
      throw error
    }
    return try body()
  }
}

// MARK: CacheWithSingleFlight.md

/// Keeps each value for a time; callers that ask for the same missing key at once share one load.
final class Cache<Key: Hashable & Sendable, Value: Sendable>: Sendable {
  private struct Entries {
    var values: [Key: (value: Value, end: CoroutineClock.Instant)] = [:]
    /// The keys in the order of their ends: all have the same lifetime.
    var ends: [(key: Key, end: CoroutineClock.Instant)] = []

    mutating func add(_ value: Value, for key: Key, until end: CoroutineClock.Instant) {
      let now = co_now
      let expired = ends.prefix { $0.end <= now }
      for (key, end) in expired where values[key]?.end == end { values[key] = nil }
      ends.removeFirst(expired.count)
      values[key] = (value, end)
      ends.append((key, end))
    }
  }

  private let entries = ThreadMutex(Entries())
  private let flights = SingleFlight<Key, Value>()
  private let lifetime: Duration
  private let load: @Sendable (Key) throws -> Value

  init(lifetime: Duration, load: @escaping @Sendable (Key) throws -> Value) {
    (self.lifetime, self.load) = (lifetime, load)
  }

  /// The number of values that are kept.
  var count: Int { entries.withLock { $0.values.count } }

  func value(for key: Key) throws -> Value {
    if let value = kept(key) { return value }
    return try flights.run(key) { [self] in
      // Another load may have ended since the look above.
      if let value = kept(key) { return value }
      let value = try load(key)
      entries.withLock { $0.add(value, for: key, until: co_now + lifetime) }
      return value
    }
  }

  private func kept(_ key: Key) -> Value? {
    let now = co_now
    return entries.withLock { $0.values[key].flatMap { $0.end > now ? $0.value : nil } }
  }
}

// MARK: FanOut.md

/// Fetches all pages, at most eight at once; the results have the order of the input.
func fetchAll(_ pages: [String], _ fetch: @escaping @Sendable (String) throws -> Int) throws -> [Int] {
  try co_map(pages, limit: 8, name: "fetch") { try fetch($0) }
}

/// The same, but a failure of one page does not end the others.
func fetchEach(_ pages: [String], _ fetch: @escaping @Sendable (String) throws -> Int) throws -> [Int?] {
  try co_map(pages, limit: 8, name: "fetch") { page in
    do {
      return try fetch(page)
    } catch {
      try co_checkCancelled()  // a cancellation of the whole is not a failure of one page
      return nil
    }
  }
}

// MARK: Debounce.md

/// Calls `body` with the last change, when none has come for `quiet`.
func debounce(_ changes: Channel<String>, quiet: Duration, _ body: (String) throws -> Void) throws {
  while var last = try changes.receive() {
    var isQuiet = false
    while !isQuiet {
      let next: String? = try co_select {
        changes.onReceive { $0 }
          .onTimeout(quiet) { nil }
      }
      if let next { last = next } else { isQuiet = true }
    }
    try body(last)
  }
}
