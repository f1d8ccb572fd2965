#if Postgres
import Coroutine
import CoroutinePostgres
import Testing

@testable import CoroutineWork

@Suite("Durable actors", .serialized, .timeLimit(.minutes(5)))
struct ActorTests {
  @Test func `messages of one key are handled in order, and answers reach their askers`() async throws {
    try await withSchema { db, schema in
      let actors = WorkActors<[Int], Int, Int>("a", on: db, schema: schema, options: quick()) { _, state, message, _ in
        state = (state ?? []) + [message]
        return state!.reduce(0, +)
      }
      try beside({ try actors.serve(concurrency: 4) }) {
        try beside({ try actors.serve(concurrency: 4) }) {
          #expect(try actors.state("k") == nil)
          let sums = try co_scope { scope in
            try (1...10).map { key in
              scope.launch { try (1...4).map { try actors.ask("\(key)", $0 * key) } }
            }.map { try $0.join() }
          }
          for key in 1...10 {
            #expect(sums[key - 1] == [1, 3, 6, 10].map { $0 * key })
            #expect(try actors.state("\(key)") == [1, 2, 3, 4].map { $0 * key })
          }
        }
      }
    }
  }

  @Test func `the same unique message is handled once, and asked again it has the same answer`() async throws {
    try await withSchema { db, schema in
      let actors = WorkActors<Int, Int, Int>("a", on: db, schema: schema, options: quick()) { _, state, message, _ in
        state = (state ?? 0) + message
        return state!
      }
      try beside({ try actors.serve() }) {
        let answers = try co_scope { scope in
          try (0..<4).map { _ in scope.launch { try actors.ask("k", 5, unique: "one") } }.map { try $0.join() }
        }
        #expect(answers == [5, 5, 5, 5])
        #expect(try actors.ask("k", 5, unique: "two") == 10)
        #expect(try actors.ask("k", 5, unique: "one") == 5)
        // The key belongs to the actor.
        #expect(try actors.ask("other", 1, unique: "one") == 1)
        try db.transaction { t in
          try actors.tell("k", 100, in: t, unique: "two")
          try actors.tell("k", 1, in: t)
        }
        #expect(try actors.ask("k", 0) == 11)
      }
    }
  }

  @Test func `a message that fails keeps nothing, holds up the next ones, and tells its asker in the end`() async throws
  {
    try await withSchema { db, schema in
      try db.run("create table \(identifier: schema).effect (n int)")
      let log = Log<Int>()
      let actors = WorkActors<Int, Int, Int>("a", on: db, schema: schema, options: quick()) { _, state, message, t in
        log.add(message)
        state = message
        try t.run("insert into \(identifier: schema).effect values (\(message))")
        if message == 7 { throw Flaky() }
        return message
      }
      try beside({ try actors.serve() }) {
        let (answer, failure) = try co_scope(failures: .isolated) { scope in
          let failing = scope.launch { try actors.ask("k", 7, unique: "7") }
          try eventually { try db.first("select count(*) from \(identifier: schema).job", as: Int.self) == 1 }
          let next = scope.launch { try actors.ask("k", 8) }
          let answer = try next.join()
          do { return (answer, "\(try failing.join())") } catch { return (answer, "\(error)") }
        }
        #expect(answer == 8)
        #expect(failure == "\(WorkActorFailed(key: "k", message: "flaky", attempts: 3))")
        #expect(throws: WorkActorFailed.self) { try actors.ask("k", 7, unique: "7") }
      }
      #expect(log.all == [7, 7, 7, 8])
      #expect(try db.all("select n from \(identifier: schema).effect", as: Int.self) == [8])
      #expect(try actors.state("k") == 8)
    }
  }

  @Test func `a cancelled asker throws at once, and the message is handled nevertheless`() async throws {
    try await withSchema { db, schema in
      let actors = WorkActors<Int, Int, Int>("a", on: db, schema: schema, options: quick()) { _, state, message, _ in
        state = message
        return message
      }
      let isCancelled = try co_scope { scope in
        let asker = scope.launch {
          do { _ = try actors.ask("k", 3) } catch is CancellationError { return true }
          return false
        }
        try eventually { try db.first("select count(*) from \(identifier: schema).job", as: Int.self) == 1 }
        asker.cancel()
        return try asker.join()
      }
      #expect(isCancelled)
      try beside({ try actors.serve() }) { try eventually { try actors.state("k") == 3 } }
    }
  }
}
#endif
