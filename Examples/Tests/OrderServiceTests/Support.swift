import Clients
import Coroutine
import CoroutineNet
import CoroutineWork
import Foundation
import HTTPTypes
import Testing

@testable import OrderService

/// A gateway that fails as often as it is told to, and drops the keys that it knows.
final class TestGateway: Sendable {
  let failures = ThreadMutex(0)
  let attempts = ThreadMutex(0)
  let mails = ThreadMutex<[(key: Int64, mail: Mail)]>([])

  @Sendable func take(_ mail: Mail, _ key: Int64) throws {
    attempts.withLock { $0 += 1 }
    let fails = failures.withLock { left in
      left -= 1
      return left >= 0
    }
    if fails { throw Gateway.RefusedMailError(status: .serviceUnavailable) }
    mails.withLock { mails in
      if !mails.contains(where: { $0.key == key }) { mails.append((key, mail)) }
    }
  }
}

/// A service that runs.
struct Running: Sendable {
  let url: String
  let shop: Shop
  let gateway: TestGateway
  let cluster: Cluster

  /// The body, the status and, if there is one, the location.
  func post(_ body: String) throws -> String {
    let format = "%{http_code} %header{location}"
    return try curl("--data-binary", "@-", "--write-out", format, url + "/orders", input: Data(body.utf8)).output
  }

  func post(_ order: Order) throws -> String { try post(String(decoding: JSONEncoder().encode(order), as: UTF8.self)) }

  /// The body and the status.
  func get(_ path: String) throws -> String { try curl("--write-out", "%{http_code}", url + path).output }

  func health() throws -> Health { try decode(Health.self, get("/health.json")) }

  func waitUntilMailed(_ id: String) throws -> OrderView {
    while true {
      let view = try decode(OrderView.self, get("/orders/\(id)"))
      if view.mailed != nil { return view }
      try co_delay(.milliseconds(5))
    }
  }
}

/// What was answered instead.
struct AnswerError: Error {
  var text: String
}

/// The value of the body in an answer.
func decode<T: Decodable>(_ type: T.Type, _ answer: String) throws -> T {
  guard let end = answer.lastIndex(of: "}") else { throw AnswerError(text: answer) }
  let decoder = JSONDecoder()
  decoder.dateDecodingStrategy = .iso8601
  return try decoder.decode(type, from: Data(answer[...end].utf8))
}

extension ServiceTests {
  /// Tries again at once.
  static var options: WorkOptions {
    var options = WorkOptions()
    options.backoff = { _ in .milliseconds(10) }
    options.poll = .milliseconds(50)
    return options
  }

  /// Runs `body` in a coroutine, beside a service with a database of its own: 1,000 books and 3 pens.
  func withService(
    _ options: WorkOptions = ServiceTests.options,
    _ body: @escaping @Sendable (Running) throws -> Void
  ) async throws {
    try await co_launch {
      let cluster = try co_blocking { try Cluster(lines: ["fsync=off"], port: 5432) }
      defer { co_shield { try? co_blocking { cluster.remove() } } }
      let gateway = TestGateway()
      let shop = try Shop(cluster.address, patience: .seconds(2), options: options)
      try shop.makeTables()
      try shop.stock("book", 1_000)
      try shop.stock("pen", 3)
      let service = Service(shop, deliver: gateway.take)
      let bound = Promise<SocketAddress>()
      let serving = co_launch { try service.run(.loopback(port: 0)) { bound.fulfill($0) } }
      defer { serving.cancel() }
      try body(Running(url: "http://\(try co_await(bound))", shop: shop, gateway: gateway, cluster: cluster))
      serving.cancel()
      _ = try? serving.join()
    }.value
  }
}
