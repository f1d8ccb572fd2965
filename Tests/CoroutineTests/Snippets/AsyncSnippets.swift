import Coroutine
import Dispatch
import Testing

private actor Server {
  func length(of word: String) -> Int { word.count }
}

extension Server {
  nonisolated func read(into buffer: inout [UInt8]) async throws {
    await Task.yield()
    buffer = [1, 2, 3]
  }
}

private func slowSum() throws -> Int {
  try co_delay(.milliseconds(1))
  return 3
}

private func total() async throws -> Int {
  try await co_launch { try slowSum() }.value
}

private actor Account {
  private let executor: CoroutineExecutor
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
  var balance = 100

  init(on queue: DispatchQueue) { executor = CoroutineExecutor(queue) }
}

private func transfer() throws { try co_yield() }
private func sumOfParts() async -> Int { 6 }

/// The code that the article CallingAsyncCode.md shows, run.
@Suite("What the article about async code shows", .timeLimit(.minutes(1)))
struct AsyncSnippets {
  @Test func `async code is called, and calls`() async throws {
    let server = Server()
    let words = ["a", "bc"]
    let lengths = co_launch {
      try words.map { word in try co_await { try await server.length(of: word) } }
    }
    #expect(try await lengths.value == [1, 2])
    let read = co_launch {
      var buffer: [UInt8] = []
      try co_awaitToEnd { try await server.read(into: &buffer) }
      return buffer
    }
    #expect(try await read.value == [1, 2, 3])
    #expect(try await total() == 3)
  }

  @Test func `an actor on a queue`() async throws {
    let account = Account(on: DispatchQueue(label: "snippet"))
    try await co_launch {
      try co_isolated(account) { account in account.balance += 1 }
      try co_isolated(account, reentrant: false) { account in
        account.balance -= 10
        try transfer()
        account.balance += 1
      }
    }.value
    #expect(await account.balance == 92)
  }

  @Test func `a Task on the worker pool`() async {
    let sum = await Task(executorPreference: WorkerPoolExecutor.shared) { await sumOfParts() }.value
    #expect(sum == 6)
  }
}
