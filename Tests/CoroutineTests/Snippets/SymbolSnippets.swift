import Coroutine
import Dispatch
import Glibc
import Testing

// The code of examples in comments of symbols, run in worlds where that can be. scripts/lint compares the two.

/// Asks the mirrors at the same time, and takes what comes first and is no failure.
private func fromAnyMirror(_ mirrors: [String], _ fetch: @escaping @Sendable (String) throws -> Int) throws -> Int {
  let requests = mirrors.map { mirror in co_launch { try fetch(mirror) } }
  return try co_any(requests)
}

/// The names of the services that do not answer.
private func unhealthy(_ services: [String], _ ping: @escaping @Sendable (String) throws -> Void) throws -> [String] {
  let outcomes = try co_allSettled(services.map { service in co_launch { try ping(service) } })
  return zip(services, outcomes).compactMap { service, outcome in
    if case .failure = outcome { service } else { nil }
  }
}

/// Calls `work` once a second, at instants that do not depend on how long it takes.
private func everySecond(times: Int, _ work: () throws -> Void) throws {
  var next = co_now
  for _ in 0..<times {
    try work()
    next = next.advanced(by: .seconds(1))
    try co_delay(until: next)
  }
}

private func end(of job: Job<Int>, orAfter time: Duration) -> [SelectCase<Int?>] {
  [job.onAwait { try $0.get() }, .onTimeout(time) { nil }]
}

/// Takes what is in the channel now, and never waits.
private func drain(_ channel: Channel<Int>) -> (values: [Int], isClosed: Bool) {
  var values: [Int] = []
  while true {
    switch channel.tryReceive() {
    case .received(let value): values.append(value)
    case .empty: return (values, false)
    case .closed: return (values, true)
    }
  }
}

/// Reads from a descriptor that does not block.
private func read(_ descriptor: Int32) throws -> [UInt8] {
  var bytes = [UInt8](repeating: 0, count: 4_096)
  while true {
    let count = Glibc.read(descriptor, &bytes, bytes.count)
    if count >= 0 { return Array(bytes.prefix(count)) }
    let error = errno  // before the wait: afterwards it may be that of another thread
    guard error == EAGAIN else { throw ErrnoError(error) }
    try co_untilReadable(descriptor, assumingNotReady: true)
  }
}

/// A callback API that has no error.
private func ask(_ question: String, _ done: @escaping @Sendable (Int) -> Void) { done(question.count) }

private func answer(to question: String) -> Guarantee<Int> {
  Guarantee { resolve in ask(question) { resolve($0) } }
}

@Suite("What examples in comments show", .timeLimit(.minutes(10)))
struct SymbolSnippets {
  struct Failure: Error {}

  @Test(.inWorlds) func `of several jobs the first success counts, or every outcome`() throws {
    let fastest = try fromAnyMirror(["broken", "slow", "fast"]) { mirror in
      if mirror == "broken" { throw Failure() }
      try co_delay(mirror == "slow" ? .seconds(2) : .seconds(1))
      return mirror.count
    }
    #expect(fastest == 4)
    let down = try unhealthy(["one", "two"]) { if $0 == "two" { throw Failure() } }
    #expect(down == ["two"])
  }

  @Test(.inWorlds) func `delays until instants do not drift`() throws {
    let began = co_now
    try everySecond(times: 3) { try co_delay(.milliseconds(300)) }
    #expect(co_now - began == .seconds(3))
  }

  @Test(.inWorlds) func `cases come from a function, and a channel is drained without a wait`() throws {
    let job = co_launch {
      try co_delay(.seconds(5))
      return 1
    }
    let early = try co_select { for each in end(of: job, orAfter: .seconds(1)) { each } }
    let late = try co_select { for each in end(of: job, orAfter: .seconds(10)) { each } }
    #expect(early == nil && late == 1)
    let channel = Channel<Int>(2)
    try channel.send(1)
    let first = drain(channel)
    channel.close()
    let rest = drain(channel)
    #expect(first.values == [1] && !first.isClosed && rest.values.isEmpty && rest.isClosed)
  }

  @Test(.inWorlds) func `a guarantee is awaited`() throws {
    let length = try co_await(answer(to: "why?"))
    #expect(length == 4)
  }

  @Test(.inWorlds) func `a coroutine moves to a queue, and back`() throws {
    let queue = DispatchQueue(label: "ledger")
    let result = try co_launch {
      let lines = ["a", "b"]
      try co_switch(to: queue)
      let entries = lines.map { "\($0): stored" }  // beside no other work of `queue`
      try co_switch(to: WorkerPoolExecutor.shared)
      return entries.joined()
    }.join()
    #expect(result == "a: storedb: stored")
  }

  @Test func `a descriptor is read when it has something to read`() async throws {
    var ends: [Int32] = [-1, -1]
    try #require(pipe(&ends) == 0)
    let (readEnd, writeEnd) = (ends[0], ends[1])
    _ = fcntl(readEnd, F_SETFL, O_NONBLOCK)
    let reader = co_launch(start: .immediate) { try read(readEnd) }
    #expect(write(writeEnd, "late", 4) == 4)
    let bytes = try await reader.value
    #expect(String(decoding: bytes, as: UTF8.self) == "late")
    close(readEnd)
    close(writeEnd)
  }
}
