import Coroutine
import CoroutineTesting
import Dispatch
import Testing

/// What docs/coming-from/async-await.md shows, compiled and run; the part about SwiftNIO is in CoroutineNIOTests.
@Suite("Coming from async/await", .timeLimit(.minutes(10)))
struct AsyncAwaitTests {
  private actor Server {
    var length: Int { 4 }
    func fill(_ buffer: inout [Int]) { buffer.append(1) }
  }

  private actor Account {
    var balance = 0
    func deposit(_ amount: Int) { balance += amount }
  }

  private func load() throws -> Int {
    try co_yield()
    return 1
  }

  @Test func `tasks and coroutines`() async throws {
    let queue = DispatchQueue(label: "async")
    let job = co_launch {
      let value = try load()
      try co_scope { scope in
        let first = scope.launch { try load() }
        let one = try first.join()
        #expect(one == 1)
      }
      try co_scope(failures: .isolated) { scope in
        scope.launch { try co_yield() }
      }
      let doubled = try co_map([1, 2, 3], limit: 2) { $0 * 2 }
      #expect(doubled == [2, 4, 6] && !co_isCancelled)
      try co_checkCancelled()
      try co_onCancel({ stop() }) { try co_yield() }
      let suspended = try co_suspend { done in done.resume(1) }
      let timed = try co_timeout(.seconds(1)) { 1 }
      return value + suspended + timed
    }
    let sum = try await job.value
    #expect(sum == 3)
    job.cancel()
    let local = CoroutineLocal(default: 0)
    let there = try await co_launch(on: queue) { local.value }.value
    #expect(there == 0 && CoroutineExecutor(queue) == CoroutineExecutor(queue))
  }

  private func stop() {}

  @Test(.inWorlds) func `time`() throws {
    try co_delay(.seconds(1))
    try co_yield()
    let job = co_launch { 1 }
    let value = try job.join()
    #expect(value == 1)
  }

  @Test func `streams and state`() async throws {
    let channel = Channel<Int>(10)
    let n = channel.capacity.limit
    #expect(Channel<Int>(.dropOldest(n)).capacity.limit == 10)
    let numbers = co_sequence(of: Int.self) { yield in try yield(1) }
    let stream = AsyncStream<Int> { continuation in
      continuation.yield(7)
      continuation.finish()
    }
    let account = Account()
    let actor = co_actor(of: Int.self) { mailbox in
      while let message = try mailbox.receive() { print(message) }
    }
    actor.stop()
    let state = ThreadMutex(0)
    try await co_launch {
      try channel.send(1)
      for number in co_sequence(stream) { state.withLock { $0 += number } }
      try co_await { await account.deposit(5) }
      try co_isolated(account) { account in account.balance += 1 }
    }.value
    #expect(Array(numbers) == [1])
    let balance = await account.balance
    #expect(balance == 6 && state.withLock { $0 } == 7)
  }

  @Test func `from one to the other`() async throws {
    let server = Server()
    let count = try await co_launch(start: .immediate) {
      let length = try co_await { await server.length }
      var buffer: [Int] = []
      try co_awaitToEnd { await server.fill(&buffer) }
      return length + buffer.count
    }.value
    #expect(count == 5)
    let one = try await co_launch { try load() }.value
    #expect(one == 1)
  }
}
