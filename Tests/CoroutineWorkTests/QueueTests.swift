#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

@testable import CoroutineWork

@Suite("Queues", .serialized, .timeLimit(.minutes(10)))
struct QueueTests {
  @Test func `a job exists if and when the transaction commits that has added it`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema)
      #expect(throws: Flaky.self) {
        try db.transaction { t in
          try queue.enqueue(Task(number: 1), in: t)
          throw Flaky()
        }
      }
      #expect(try queue.counts()[.available] == 0)
      try db.transaction { t in
        let added = try queue.enqueue(Task(number: 2), in: t)
        #expect(added.isNew)
        #expect(try queue.job(added.id) == nil)
      }
      #expect(try queue.jobs(.available).map { try $0.payload.get().number } == [2])
    }
  }

  @Test func `finish commits the effects and the job together, and a job that throws runs again`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      try db.run("create table \(identifier: schema).effect (job bigint primary key, attempt int)")
      for number in 0..<20 { try queue.add(Task(number: number), on: db) }
      try beside {
        try queue.work(concurrency: 4) { job in
          if job.attempt == 1, job.payload.number % 3 == 0 { throw Flaky() }
          try job.finish { t in
            try t.run("insert into \(identifier: schema).effect values (\(job.id), \(job.attempt))")
            if job.attempt == 1, job.payload.number % 3 == 1 { throw Flaky() }
          }
        }
      } _: {
        try eventually { try queue.counts()[.completed] == 20 }
      }
      #expect(try db.first("select count(*) from \(identifier: schema).effect", as: Int.self) == 20)
      let record = try #require(try queue.jobs(.completed).first)
      #expect(record.attempt == 2)
      #expect(record.errors == ["flaky"])
      #expect(record.leaseEnds == nil && record.endedAt != nil)
    }
  }

  @Test func `after the last attempt a job is discarded, and retry gives it one more`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(attempts: 2))
      let (id, _) = try queue.add(Task(number: 1), on: db)
      let log = Log<String>()
      try beside {
        try queue.work(
          onEvent: { event in
            switch event {
            case .failed(_, let attempt, _): log.add("failed \(attempt)")
            case .discarded: log.add("discarded")
            default: break
            }
          },
          { job in if job.attempt < 3 { throw Flaky() } }
        )
      } _: {
        try eventually { try queue.job(id)?.state == .discarded }
        #expect(throws: WorkError.noSuchJob(id + 1)) { try queue.retry(id + 1) }
        try queue.retry(id)
        try eventually { try queue.job(id)?.state == .completed }
        #expect(throws: WorkError.noSuchJob(id)) { try queue.cancel(id) }
      }
      #expect(log.all == ["failed 1", "failed 2", "discarded"])
      let record = try #require(try queue.job(id))
      #expect(record.attempt == 3 && record.attempts == 3)
      #expect(record.errors == ["flaky", "flaky"])
    }
  }

  @Test func `a unique key counts while its job has not ended, also between two transactions at once`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      let ids = try co_scope { scope in
        try (0..<8).map { number in
          scope.launch { try queue.add(Task(number: number), on: db, unique: "one") }
        }.map { try $0.join() }
      }
      #expect(Set(ids.map(\.id)).count == 1)
      #expect(ids.count { $0.isNew } == 1)
      try beside {
        try queue.work { _ in }
      } _: {
        try eventually { try queue.counts()[.completed] == 1 }
      }
      #expect(try queue.add(Task(number: 9), on: db, unique: "one").isNew)
    }
  }

  @Test func `jobs are claimed by priority, then by date, then by number`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      let now = Date()
      try queue.add(Task(number: 4), on: db, priority: 1, at: now - 100)
      try queue.add(Task(number: 2), on: db, at: now - 50)
      try queue.add(Task(number: 3), on: db, at: now - 50)
      try queue.add(Task(number: 1), on: db, at: now - 60)
      try queue.add(Task(number: 5), on: db, priority: -1, at: now + 3_600)
      #expect(try queue.counts()[.scheduled] == 1)
      let log = Log<Int>()
      try beside {
        try queue.work(concurrency: 1) { log.add($0.payload.number) }
      } _: {
        try eventually { try queue.counts()[.completed] == 4 }
      }
      #expect(log.all == [1, 2, 3, 4])
    }
  }

  @Test func `a job with a date waits for it, by the clock of the server`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      let now = try #require(try db.first("select clock_timestamp()", as: Date.self))
      let (id, _) = try queue.add(Task(number: 1), on: db, at: now + 3)
      let isScheduled = try queue.job(id)?.state == .scheduled
      // Unless so much has passed meanwhile.
      let after = try #require(try db.first("select clock_timestamp()", as: Date.self))
      #expect(isScheduled || after >= now + 3)
      let log = Log<Date>()
      try beside {
        try queue.work { job in
          try job.finish { t in if let now = try t.first("select clock_timestamp()", as: Date.self) { log.add(now) } }
        }
      } _: {
        try eventually { try queue.job(id)?.state == .completed }
      }
      #expect(log.all.count == 1)
      #expect(log.all.allSatisfy { $0 >= now + 3 })
    }
  }

  @Test func `many jobs are added by one statement, in their order`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema)
      try db.transaction { t in
        try queue.enqueue(all: (0..<500).map { Task(number: $0, text: "it's \"\\ \(Character("é"))") }, in: t)
        try queue.enqueue(all: [], in: t)
      }
      #expect(try queue.jobs(.available, limit: 1_000).map { try $0.payload.get().number } == Array(0..<500))
      let first = try queue.jobs(.available, limit: 2)
      #expect(try queue.jobs(.available, limit: 1, after: first[0].id).map(\.id) == [first[1].id])
    }
  }

  @Test func `a payload that does not decode is discarded at once, with its error`() async throws {
    try await withSchema { db, schema in
      let texts = WorkQueue<String>("q", on: db, schema: schema, options: quick())
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      let (id, _) = try texts.add("no task", on: db)
      let log = Log<WorkError>()
      try beside {
        try queue.work(
          onEvent: { if case .discarded(_, let error as WorkError) = $0 { log.add(error) } },
          { _ in Issue.record("a handler has run") }
        )
      } _: {
        try eventually { try queue.job(id)?.state == .discarded }
      }
      let record = try #require(try queue.job(id))
      guard case .failure(let error) = record.payload, WorkError.payload ~= error else {
        Issue.record("the payload decodes")
        return
      }
      #expect(error.number == id && record.attempt == 1 && record.errors.count == 1)
      #expect(log.all.count == 1)
    }
  }

  @Test func `no error of a payload tells a value of it`() async throws {
    enum Colour: String, Codable, Sendable { case red }
    try await withSchema { db, schema in
      let queue = WorkQueue<[Colour]>("q", on: db, schema: schema, options: quick())
      let texts = WorkQueue<[String]>("q", on: db, schema: schema, options: quick())
      let (id, _) = try texts.add(["red", "s3cret"], on: db)
      let log = Log<String>()
      try beside {
        try queue.work(onEvent: { if case .discarded(_, let error) = $0 { log.add("\(error)") } }, { _ in })
      } _: {
        try eventually { try queue.job(id)?.state == .discarded }
      }
      let record = try #require(try queue.job(id))
      for text in ["\(record)"] + record.errors + log.all { #expect(!text.contains("s3cret"), "\(text)") }
      #expect(record.errors.first?.contains("is no Array<Colour>, at ") == true, "\(record.errors)")
    }
  }

  @Test func `a claim leaves a large payload behind, and its attempt reads it`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(attempts: 1))
      // Not a text that the server can compress.
      let large = (0..<4_000).map { _ in String(UInt64.random(in: 0 ... .max), radix: 36) }.joined()
      let tasks = [Task(number: 0, text: "small"), Task(number: 1, text: large)]
      try db.transaction { t in try queue.enqueue(all: tasks, in: t) }
      let claimed = try queue.core.table.claim(2, lease: .seconds(60), worker: "w", db)
      #expect(claimed.map { $0.payload == nil } == [false, true])
      _ = try queue.core.table.end(claimed.map { JobEnd(id: $0.id, fence: $0.fence, kind: .release) }, db)
      let seen = Log<Task>()
      try beside {
        try queue.work { seen.add($0.payload) }
      } _: {
        try eventually { try queue.counts()[.completed] == 2 }
      }
      #expect(Set(seen.all) == Set(tasks))
    }
  }

  @Test func `a payload that cannot be read fails its attempt`() async throws {
    try await withSchema { db, schema in
      var options = quick(attempts: 1)
      options.timeout = .milliseconds(200)
      let queue = WorkQueue<String>("q", on: db, schema: schema, options: options)
      let large = (0..<4_000).map { _ in String(UInt64.random(in: 0 ... .max), radix: 36) }.joined()
      let (id, _) = try queue.add(large, on: db)
      // All connections of the pool are in use.
      try co_scope { scope in
        let free = Promise<Void>()
        for _ in 0..<6 { scope.launch { try db.withConnection { _ in try co_await(free) } } }
        try eventually { db.statistics.inUse == 6 }
        let discarded = Promise<Void>()
        try beside {
          try queue.work(onEvent: { if case .discarded = $0 { discarded.fulfill(()) } }) { _ in
            Issue.record("a handler has run")
          }
        } _: {
          try co_await(discarded)
        }
        free.fulfill(())
      }
      let record = try #require(try queue.job(id))
      #expect(record.state == .discarded && record.attempt == 1 && record.errors.count == 1)
    }
  }

  @Test func `snooze, discard and checkpoints do what they say`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      let ids = try (0..<3).map { try queue.add(Task(number: $0), on: db).id }
      let log = Log<[UInt8]>()
      try beside {
        try queue.work { job in
          switch job.payload.number {
          case 0:
            // Each attempt is the first.
            #expect(job.attempt == 1)
            guard let seen = job.checkpoint else {
              try job.save([1, 0, 2])
              try job.snooze(.milliseconds(30))
            }
            log.add(seen)
          case 1: try job.discard("it is\0 of no use")
          default:
            try job.save(Array(repeating: 7, count: 65_536))
            if job.attempt == 1 { throw Flaky() }
            #expect(job.checkpoint?.count == 65_536)
          }
        }
      } _: {
        try eventually { try ids.allSatisfy { try queue.job($0)?.endedAt != nil } }
      }
      #expect(log.all == [[1, 0, 2]])
      #expect(try queue.job(ids[0])?.attempt == 1)
      let discarded = try #require(try queue.job(ids[1]))
      #expect(discarded.state == .discarded && discarded.errors == ["it is of no use"])
      #expect(try queue.job(ids[2])?.attempt == 2)
    }
  }

  @Test func `what is too large or has no place in the tables is an error, and the process goes on`() async throws {
    try await withSchema { db, schema in
      // On a server and in memory.
      let queues = [
        WorkQueue<Task>("q", on: db, schema: schema, options: quick(attempts: 1)),
        WorkQueue<Task>("q", on: WorkMemory().pool(), options: quick(attempts: 1)),
      ]
      for queue in queues {
        let (core, isInMemory) = (queue.core, queue.core.table.memory != nil)
        let (id, _) = try queue.add(Task(number: 1), on: core.db)
        let kinds = Log<PostgresError.Kind?>()
        try beside {
          try queue.work { job in
            kinds.add(kind { try job.save(Array(repeating: 7, count: 65_537)) })
            #expect(job.checkpoint == nil)
            try job.save([1])
          }
        } _: {
          try eventually { try queue.job(id)?.state == .completed }
        }
        #expect(kinds.all == [.decoding])
        let error = #expect(throws: PostgresError.self) { try queue.add(Task(number: 1, text: "a\0b"), on: core.db) }
        #expect(error?.kind == .decoding && error?.message.contains("zero byte") == true, "\(isInMemory)")
        for seconds in [1e12, 1e15, 1e300, .infinity, -1e12, -.infinity] {
          let at = Date(timeIntervalSince1970: seconds)
          let draft = try queue.draft(Task(number: 1), at: at)
          #expect(kind { try Work.enqueue([draft], on: core.db) } == .server || seconds == 1e12)
          #expect(kind { try queue.add(Task(number: 1), on: core.db, at: at) } == .server || seconds == 1e12)
        }
        #expect(try queue.jobs(.completed, limit: -1).isEmpty)
        let missing = #expect(throws: WorkError.noSuchJob(-1)) { try queue.retry(-1) }
        #expect(missing?.description == "there is no job -1; the numbers of jobs begin at 1")
        #expect(throws: WorkError.noSuchJob(-1)) { try queue.cancel(-1) }
      }
    }
  }

  @Test func `a paused queue gives out no jobs until it is resumed`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      try queue.pause()
      let (id, _) = try queue.add(Task(number: 1), on: db)
      let other = WorkQueue<Task>("other", on: db, schema: schema, options: quick())
      try beside {
        try queue.work { _ in }
      } _: {
        // The other queue's worker has looked several times before it comes to its third job.
        for number in 0..<3 {
          let (id, _) = try other.add(Task(number: number), on: db)
          try beside {
            try other.work { _ in }
          } _: {
            try eventually { try other.job(id)?.state == .completed }
          }
        }
        #expect(try queue.job(id)?.state == .available)
        #expect(try queue.health().oldestAvailable > .zero)
        try queue.resume()
        try eventually { try queue.job(id)?.state == .completed }
      }
    }
  }

  @Test func `an idle worker is woken by a notification, and finds a job without one by polling`() async throws {
    try await withSchema { db, schema in
      let name = uniqueName("q")
      // By another program, so no bell of this one rings.
      func insert() throws -> Int64 {
        let id = try db.first(
          """
          insert into \(identifier: schema).job (queue, state, attempts, payload)
          values (\(name), 'available', 1, '{"number": 1, "text": ""}') returning id
          """,
          as: Int64.self
        )
        return try #require(id)
      }
      var options = quick()
      options.poll = .seconds(3_600)
      let listening = WorkQueue<Task>(name, on: db, schema: schema, options: options)
      try beside {
        try listening.work { _ in }
      } _: {
        for _ in 0..<5 {
          let id = try insert()
          try db.run("select pg_notify(\("work:\(name)"), '')")
          try eventually { try listening.job(id)?.state == .completed }
        }
      }
      options.poll = .milliseconds(20)
      options.usesNotifications = false
      let polling = WorkQueue<Task>(name, on: db, schema: schema, options: options)
      try beside {
        try polling.work { _ in }
      } _: {
        for _ in 0..<3 {
          let id = try insert()
          try eventually { try polling.job(id)?.state == .completed }
        }
      }
    }
  }

  @Test func `jobs that are added by many transactions are announced after their commits, by few notifications`()
    async throws
  {
    try await withSchema { db, schema in
      let name = uniqueName("q")
      let queue = WorkQueue<Task>(name, on: db, schema: schema, options: quick())
      let notes = try db.listen("work:\(name)")
      defer { notes.stop() }
      #expect(try notes.receive() == .gap)
      // Some at once: on a slow machine one after the other would come as seldom as notifications may.
      try co_scope { scope in
        for _ in 0..<5 { scope.launch { for number in 0..<20 { try queue.add(Task(number: number), on: db) } } }
      }
      guard case .payload("", _) = try notes.receive() else {
        Issue.record("another note")
        return
      }
      // The last one is sent after the last commit, so a worker that looks at each note sees all jobs in the end.
      var count = 1
      while case .payload? = try? co_timeout(.milliseconds(300), { try notes.receive() }) { count += 1 }
      #expect(count < 100)
    }
  }

  @Test func `texts that look like SQL are payloads, keys and names, and nothing else`() async throws {
    try await withSchema { db, _ in
      let evil = "x'); drop table job; --\" {schema}"
      try Work.migrate(db, schema: evil)
      defer { _ = co_shield { try? db.run("drop schema \(identifier: evil) cascade") } }
      let queue = WorkQueue<Task>(evil, on: db, schema: evil, options: quick())
      let (id, _) = try queue.add(Task(number: 1, text: evil), on: db, unique: evil, key: evil)
      #expect(try !queue.add(Task(number: 2), on: db, unique: evil, key: evil).isNew)
      try beside {
        try queue.work { job in if job.attempt == 1 { throw Flaky(description: evil) } }
      } _: {
        try eventually { try queue.job(id)?.state == .completed }
      }
      let record = try #require(try queue.job(id))
      #expect(try record.payload.get().text == evil)
      #expect(record.errors == [evil])
    }
  }

  @Test func `the benchmark's script has the statements that a worker sends`() async throws {
    let root = URL(fileURLWithPath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
      .deletingLastPathComponent()
    let script = try String(contentsOf: root.appendingPathComponent("Benchmarks/work.pgbench"), encoding: .utf8)
    func normal(_ text: String) -> String {
      text.replacingOccurrences(of: "\"", with: "").split(whereSeparator: \.isWhitespace).joined(separator: " ")
    }
    try await co_launch {
      // A pool that keeps what would be sent.
      let memory = WorkMemory()
      let db = memory.pool()
      let table = JobTable(queue: "bench", schema: "work")
      _ = try table.claim(1, lease: .seconds(30), worker: "pgbench", db)
      try db.transaction { t in
        _ = try table.lock(7, fence: 8, t)
        _ = try table.complete(7, fence: 8, hasKey: false, isDeleted: false, t)
      }
      let values = [
        ["'bench'", "'bench'", "'work.fence'", "30000", "'pgbench'"], [":id", ":fence"], [":id", ":fence"],
      ]
      for (statement, values) in zip(memory.committed, values) {
        var text = statement.description
        for (number, value) in values.enumerated() {
          text = text.replacingOccurrences(of: "$\(number + 1)", with: value)
        }
        #expect(normal(script).contains(normal(text)), "\(normal(text))")
      }
      #expect(memory.committed.count == 3)
    }.value
  }
}
#endif
