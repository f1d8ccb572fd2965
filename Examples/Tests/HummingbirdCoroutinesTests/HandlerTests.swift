import Clients
import Coroutine
import Hummingbird
import HummingbirdCoroutines
import HummingbirdTesting
import Logging
import NIOConcurrencyHelpers
import NIOCore
import Testing

@Suite("Synchronous handlers of Hummingbird", .timeLimit(.minutes(5)))
struct HandlerTests {
  /// Waits deep inside synchronous code.
  private static func doubled(_ numbers: [Int]) throws -> [Int] {
    try numbers.map { number in
      try co_delay(.milliseconds(1))
      return try co_await {
        await Task.yield()
        return 2 * number
      }
    }
  }

  @Test func `a handler waits at any depth, in every kind of route`() async throws {
    let router = Router()
    router.coroutines.get("double/:number") { _, context in
      try "\(Self.doubled([context.parameters.require("number", as: Int.self), 4]))"
    }
    router.group("group").coroutines
      .get { request, _ in "GET \(request.uri.path)" }
      .put { _, _ in HTTPResponse.Status.created }
      .post { _, _ in HTTPResponse.Status.accepted }
      .patch { _, _ in HTTPResponse.Status.noContent }
      .delete { _, _ in HTTPResponse.Status.gone }
      .head { _, _ in Response(status: .ok, headers: [.eTag: "x"]) }
    try await Application(router: router, logger: quiet).test(.router) { client in
      let answer = try await client.execute(uri: "/double/21", method: .get)
      #expect(String(buffer: answer.body) == "[42, 8]")
      #expect(try await String(buffer: client.execute(uri: "/group", method: .get).body) == "GET /group")
      #expect(try await client.execute(uri: "/group", method: .put).status == .created)
      #expect(try await client.execute(uri: "/group", method: .post).status == .accepted)
      #expect(try await client.execute(uri: "/group", method: .patch).status == .noContent)
      #expect(try await client.execute(uri: "/group", method: .delete).status == .gone)
      #expect(try await client.execute(uri: "/group", method: .head).headers[.eTag] == "x")
    }
  }

  @Test func `errors are Hummingbird's answers, before and after a wait`() async throws {
    let router = Router()
    router.coroutines
      .get("teapot") { _, _ -> String in throw HTTPError(.init(code: 418), message: "short and stout") }
      .get("late") { _, _ -> String in
        try co_delay(.milliseconds(1))
        throw HTTPError(.conflict)
      }
      .get("oops") { _, _ -> String in throw Oops() }
      .get("timeout") { _, _ -> String in
        try co_timeout(.milliseconds(1)) {
          try co_delay(.seconds(3_600))
          return ""
        }
      }
      .get("number/:number") { _, context in try "\(context.parameters.require("number", as: Int.self))" }
      .post("short") { request, _ in try "\(request.body.collected(upTo: 10).readableBytes)" }
    try await Application(router: router, logger: quiet).test(.router) { client in
      let teapot = try await client.execute(uri: "/teapot", method: .get)
      #expect(teapot.status.code == 418)
      #expect(String(buffer: teapot.body) == #"{"error":{"message":"short and stout"}}"#)
      #expect(try await client.execute(uri: "/late", method: .get).status == .conflict)
      #expect(try await client.execute(uri: "/oops", method: .get).status == .internalServerError)
      #expect(try await client.execute(uri: "/timeout", method: .get).status == .internalServerError)
      #expect(try await client.execute(uri: "/number/x", method: .get).status == .badRequest)
      let long = ByteBuffer(repeating: 65, count: 11)
      #expect(try await client.execute(uri: "/short", method: .post, body: long).status == .contentTooLarge)
      let short = try await client.execute(uri: "/short", method: .post, body: long.getSlice(at: 0, length: 10))
      #expect(String(buffer: short.body) == "10")
    }
  }

  @Test func `a handler is cancelled with the request's Task, which waits for its end`() async throws {
    let begun = Gate()
    let cancelled = Gate()
    let mayEnd = Gate()
    let order = Locked<[String]>([])
    let router = Router()
    router.coroutines
      .get("forever") { _, _ -> String in
        defer { order.withLockedValue { $0.append("ended") } }
        begun.open()
        do {
          try co_delay(.seconds(3_600))
        } catch {
          order.withLockedValue { $0.append("\(type(of: error))") }
          cancelled.open()
          try co_shield { try mayEnd.pass() }
          throw error
        }
        return ""
      }
      .get("other") { _, _ in "" }
    try await Application(router: router, logger: quiet).test(.router) { client in
      let request = Task {
        let status = try await client.execute(uri: "/forever", method: .get).status
        order.withLockedValue { $0.append("answered") }
        return status
      }
      try await begun.value
      request.cancel()
      try await cancelled.value
      // A Task that left its coroutine behind would answer while these are answered.
      for _ in 0..<100 { _ = try await client.execute(uri: "/other", method: .get) }
      #expect(order.withLockedValue { $0 } == ["CancellationError"])
      mayEnd.open()
      #expect(try await request.value == .internalServerError)
      #expect(order.withLockedValue { $0 } == ["CancellationError", "ended", "answered"])
    }
  }

  @TaskLocal static var tenant = "none"

  private struct Tenant<Context: RequestContext>: RouterMiddleware {
    @concurrent
    func handle(
      _ request: Request,
      context: Context,
      next: @concurrent (Request, Context) async throws -> Response
    ) async throws -> Response {
      try await HandlerTests.$tenant.withValue(request.headers[.userAgent] ?? "") { try await next(request, context) }
    }
  }

  @Test func `task-locals reach the handler, the code that it awaits, and the current logger`() async throws {
    let router = Router()
    router.add(middleware: Tenant())
    router.coroutines.get("tenant") { _, context in
      let before = Self.tenant
      try co_delay(.milliseconds(1))
      let awaited = try co_await { Self.tenant }
      let isLogged = Logger.current[metadataKey: "hb.request.id"] == context.logger[metadataKey: "hb.request.id"]
      return "\(before) \(Self.tenant) \(awaited) \(isLogged)"
    }
    // Hummingbird binds the logger in a server only.
    try await Application(router: router, logger: quiet).test(.live) { client in
      for name in ["a", "b"] {
        let answer = try await client.execute(uri: "/tenant", method: .get, headers: [.userAgent: name])
        #expect(String(buffer: answer.body) == "\(name) \(name) \(name) true")
      }
    }
  }

  @Test func `handlers that wait hold no thread`() async throws {
    let count = 500
    let arrived = Latch(count)
    let router = Router()
    router.coroutines.get("all") { _, _ in
      arrived.countDown()
      try arrived.wait()
      return "all"
    }
    try await Application(router: router, logger: quiet).test(.router) { client in
      try await withThrowingTaskGroup(of: String.self) { tasks in
        for _ in 0..<count {
          tasks.addTask { try await String(buffer: client.execute(uri: "/all", method: .get).body) }
        }
        for try await answer in tasks { #expect(answer == "all") }
      }
    }
  }
}
