import Coroutine
import Dispatch
import Testing

private actor Server {
  func length(of word: String) throws -> Int { word.count }
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

// What the example of a server needs of Hummingbird 2.28, by the package's names, with a String for a response.
// Examples has handlers that are compiled with the package itself.
private struct URI: Sendable { let path: String }
private struct Request: Sendable { let uri: URI }
private struct BasicRequestContext: Sendable {}
private final class Router {
  private(set) var handlers: [String: @Sendable (Request, BasicRequestContext) async throws -> String] = [:]
  func get(_ path: String, use handler: @escaping @Sendable (Request, BasicRequestContext) async throws -> String) {
    handlers[path] = handler
  }
}

private actor Prices {
  func price(of item: String) async -> Int {
    await Task.yield()
    return item.count
  }
}

/// A tree of another library, which calls its visitor synchronously.
private indirect enum Basket: Sendable {
  case item(String, count: Int)
  case all([Basket])

  func accept(_ visitor: inout some BasketVisitor) throws {
    switch self {
    case .item(let name, let count): try visitor.visit(name, count: count)
    case .all(let baskets): for basket in baskets { try basket.accept(&visitor) }
    }
  }
}

private protocol BasketVisitor {
  mutating func visit(_ item: String, count: Int) throws
}

private struct Total: BasketVisitor {
  let prices: Prices
  var sum = 0

  mutating func visit(_ item: String, count: Int) throws {
    sum += try co_await { [prices] in await prices.price(of: item) } * count
  }
}

private func addRoutes(to router: Router, _ baskets: [String: Basket], _ prices: Prices) {
  router.get("total/:basket") { request, context in
    guard let basket = baskets[request.uri.path] else { return "unknown" }
    return try await co_launch(start: .immediate) {
      var total = Total(prices: prices)
      try basket.accept(&total)
      return "\(total.sum)"
    }.value
  }
}

/// The code that the article CallingAsyncCode.md shows, run.
@Suite("What the article about async code shows", .timeLimit(.minutes(10)))
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
    let mutex = FairMutex()
    try await co_launch {
      try co_isolated(account) { account in account.balance += 1 }
      try mutex.withLock {
        try co_isolated(account) { account in
          account.balance -= 10
          try transfer()
          account.balance += 1
        }
      }
    }.value
    #expect(await account.balance == 92)
  }

  @Test func `a Task on the worker pool`() async {
    let sum = await Task(executorPreference: WorkerPoolExecutor.shared) { await sumOfParts() }.value
    #expect(sum == 6)
  }

  @Test func `a server's handler`() async throws {
    let router = Router()
    let basket = Basket.all([.item("tea", count: 2), .all([.item("bread", count: 1), .item("salt", count: 3)])])
    addRoutes(to: router, ["/total/7": basket], Prices())
    let handler = try #require(router.handlers["total/:basket"])
    let request = Request(uri: URI(path: "/total/7"))
    #expect(try await handler(request, BasicRequestContext()) == "23")
    let cancelled = Task { try await handler(request, BasicRequestContext()) }
    cancelled.cancel()
    #expect(["23", "CancellationError"].contains(await asyncOutcome { try await cancelled.value }))
  }
}
