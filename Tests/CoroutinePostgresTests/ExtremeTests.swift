#if Postgres
import Coroutine
import CoroutinePostgres
import Testing

/// Each number and duration that a program can give CoroutinePostgres, at its extremes.
///
/// A call works, or throws a `PostgresError` that says what was too little, within the test's limit. Never a trap.
@Suite("Extremes of the pool", .serialized, .timeLimit(.minutes(10)))
struct ExtremeTests {
  private static let durations: [Duration] = [
    .zero, .nanoseconds(-1), .seconds(Int64.min), .nanoseconds(1), .seconds(Int64.max), .seconds(Int64.max) * 18,
  ]

  private struct Failure: Error {
    let text: String
  }

  private struct Option: Sendable {
    let name: String
    let set: @Sendable (inout PostgresPool.Options) -> Void
  }

  private static let options: [Option] = {
    var all: [Option] = []
    for duration in durations {
      all += [
        Option(name: "acquireTimeout \(duration)") { $0.acquireTimeout = duration },
        Option(name: "cancelTimeout \(duration)") { $0.cancelTimeout = duration },
        Option(name: "maxLifetime \(duration)") { $0.maxLifetime = duration },
        Option(name: "maxIdle \(duration)") { $0.maxIdle = duration },
        Option(name: "checkAfter \(duration)") { $0.checkAfter = duration },
        Option(name: "statementTimeout \(duration)") { $0.statementTimeout = duration },
        Option(name: "idleInTransactionTimeout \(duration)") { $0.idleInTransactionTimeout = duration },
      ]
    }
    for number in [Int.min, -1, 0, 1, .max] {
      all += [
        Option(name: "statementCache \(number)") { $0.statementCache = number },
        Option(name: "pipelines \(number)") { $0.pipelines = number },
        Option(name: "connections to \(number)") { $0.connections = min(0, number)...max(0, number) },
        Option(name: "connections \(number)...") { $0.connections = min(1, number)...Int.max },
      ]
    }
    return all
  }()

  /// The calls that take a connection, by name.
  private static let calls: [(name: String, call: @Sendable (PostgresPool) throws -> Int?)] = [
    ("statement", { try $0.first("select 7", as: Int.self) }),
    ("transaction", { db in try db.transaction { try $0.first("select 7", as: Int.self) } }),
    ("pipeline", { try $0.pipeline.first("select 7", as: Int.self) }),
    ("connection", { db in try db.withConnection { try $0.first("select 7", as: Int.self) } }),
    (
      "transaction that waits",
      { db in
        try db.transaction { t in
          try co_yield()
          return try t.first("select 7", as: Int.self)
        }
      }
    ),
  ]

  @Test func `with an option at its extreme each call works, or says what was too little`() async throws {
    let cluster = try Cluster.shared.get()
    try await co_launch {
      for option in Self.options {
        var options = PostgresPool.Options()
        option.set(&options)
        let db = try PostgresPool(cluster.address, options: options)
        defer { co_shield { try? db.close(drain: .zero) } }
        // A limit that has passed, or no connection at all, is a reason; others are none.
        let mayFail =
          options.acquireTimeout <= .nanoseconds(1) || options.statementTimeout.map { $0 <= .nanoseconds(1) } == true
          || options.idleInTransactionTimeout.map { $0 <= .nanoseconds(1) } == true
        for (route, call) in Self.calls {
          for round in 0..<2 {
            do {
              let answer = try co_timeout(.seconds(200)) { try call(db) }
              #expect(answer == 7, "\(option.name), \(route), \(round)")
            } catch let error as PostgresError {
              #expect(mayFail, "\(option.name), \(route), \(round): \(error)")
            }
          }
        }
      }
    }.value
  }

  @Test func `arguments at their extremes: batches, retries, buffers, drains`() async throws {
    try await withPool { db in
      for number in [Int.min, -1, 0, 1, .max] {
        var sum = 0
        try db.transaction { t in
          try t.forEach("select n from generate_series(1, 10) n", batch: number) { sum += try $0.decode(Int.self) }
        }
        #expect(sum == 55, "batch \(number)")
        #expect(try db.transaction(retries: number) { try $0.first("select 7", as: Int.self) } == 7)
        let channel = uniqueName("c")
        let heard = try db.listen(channel, buffer: number)
        #expect(try heard.receive() == .gap)
        try db.run("select pg_notify(\(channel), 'one')")
        let next = try co_timeout(.seconds(200)) { try heard.receive() }
        guard case .payload("one", _)? = next else {
          throw Failure(text: "buffer \(number): \(String(describing: next))")
        }
        heard.stop()
      }
    }
    let cluster = try Cluster.shared.get()
    try await co_launch {
      for duration in Self.durations {
        let db = try PostgresPool(cluster.address)
        try db.run("select 1")
        try co_timeout(.seconds(200)) { try db.close(drain: duration) }
        #expect(throws: PostgresError.self) { try db.run("select 1") }
      }
    }.value
  }
}
#endif
