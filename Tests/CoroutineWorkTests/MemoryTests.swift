#if Postgres
import Coroutine
import CoroutinePostgres
import CoroutineTesting
import Foundation
import Testing

@testable import CoroutineWork

@Suite("A database in memory, in worlds", .timeLimit(.minutes(10)))
struct MemoryTests {
  private static let start = Date(timeIntervalSince1970: 1_800_000_000)

  /// Runs `body` in a world, with a database whose clock begins with it.
  private func inWorld<R: Sendable>(
    seed: UInt64? = nil,
    answer: @escaping @Sendable (SQL) throws -> PostgresRows = { _ in PostgresRows() },
    _ body: @escaping @Sendable (World, WorkMemory) throws -> R
  ) throws -> R {
    let world = World(seed: seed)
    return try world.run { try body(world, WorkMemory(startingAt: Self.start, answer: answer)) }
  }

  private func options(lease: Duration = .seconds(30), attempts: Int = 5) -> WorkOptions {
    var options = WorkOptions()
    options.lease = lease
    options.attempts = attempts
    options.backoff = { _ in .seconds(10) }
    return options
  }

  /// The first values of the statements that have taken effect.
  private func numbers(_ memory: WorkMemory) throws -> [Int] {
    try memory.committed.map { statement -> Int in try statement.decode(Int.self) }
  }

  private func until(_ condition: () throws -> Bool) throws {
    while try !condition() { try co_delay(.milliseconds(100)) }
  }

  /// A document of any form, as a client may send it: an object in an object, and so on.
  private struct Nested: Codable, Sendable {
    let inner: [String: Nested]

    init(levels: Int) {
      var value = Nested(inner: [:])
      for _ in 1..<levels { value = Nested(inner: ["a": value]) }
      self = value
    }
    private init(inner: [String: Nested]) { self.inner = inner }
    init(from decoder: any Decoder) throws {
      inner = try decoder.singleValueContainer().decode([String: Nested].self)
    }
    func encode(to encoder: any Encoder) throws {
      var container = encoder.singleValueContainer()
      try container.encode(inner)
    }
    var depth: Int { 1 + (inner["a"]?.depth ?? 0) }
  }

  // On the usual stack of a coroutine its decoder would overflow, in every program that claims the job.
  @Test func `a payload nested as deeply as the decoder allows is added, worked on, read, and added again`() throws {
    try inWorld { _, memory in
      let db = memory.pool()
      let queue = WorkQueue<Nested>("q", on: db, options: options())
      let depths = Log<Int>()
      let worker = co_launch {
        try queue.work { job in
          depths.add(job.payload.depth)
          if depths.all.count == 1 { try queue.add(job.payload, on: db) }
        }
      }
      let added = try queue.add(Nested(levels: 400), on: db)
      try until { try queue.counts()[.completed] == 2 }
      #expect(depths.all == [400, 400])
      #expect(try queue.job(added.id) != nil)
      worker.cancel()
      _ = try? worker.join()
    }
  }

  @Test func `the job of a host that has crashed runs on another one when its lease has ended, with its effects once`()
    throws
  {
    try inWorld { world, memory in
      let options = options()
      let attempts = Log<(host: String, attempt: Int, at: Duration)>()
      for host in ["a", "b"] {
        world.network.host(host) {
          if host == "b" { try co_delay(.seconds(1)) }
          try WorkQueue<Task>("q", on: memory.pool(), options: options).work { job in
            attempts.add((host, job.attempt, world.now))
            try co_delay(.seconds(10))
            try job.finish { t in try t.run("insert into sent values (\(job.payload.number))") }
          }
        }
      }
      let db = memory.pool()
      let queue = WorkQueue<Task>("q", on: db, options: options)
      try queue.add(Task(number: 7), on: db)
      try until { attempts.all.count == 1 }
      try world.advance(by: .seconds(5))
      world.network.crash("a")
      try until { try queue.counts()[.completed] == 1 }
      #expect(attempts.all.map(\.host) == ["a", "b"] && attempts.all.map(\.attempt) == [1, 2])
      let gap = attempts.all[1].at - attempts.all[0].at
      #expect(gap >= .seconds(30) && gap < .seconds(33), "\(gap)")
      #expect(try numbers(memory) == [7])
      #expect(try queue.jobs(.completed)[0].errors == ["the lease of the worker has ended"])
    }
  }

  @Test func `a handler that is cut off is cancelled before its lease ends, and what it then commits is refused`()
    throws
  {
    try inWorld { world, memory in
      let options = options()
      let (cut, other) = (memory.pool(), memory.pool())
      let events = Log<String>()
      let late = Log<PostgresError.Kind?>()
      @Sendable func work(_ name: String, on db: PostgresPool) throws {
        let onEvent: @Sendable (WorkEvent) -> Void = { event in
          if case .leaseLost = event { events.add(name) }
        }
        try WorkQueue<Task>("q", on: db, options: options).work(onEvent: onEvent) { job in
          if name == "cut" {
            do { try co_delay(.seconds(600)) } catch {}
            #expect(co_isCancelled && world.now < .seconds(31))
            co_shield {
              // It does not know that it was cancelled, and can be reached again.
              _ = try? co_delay(.seconds(60))
              memory.setReachable(true, from: cut)
              late.add(kind { try job.finish { t in try t.run("insert into sent values (\(1))") } })
            }
          } else {
            try job.finish { t in try t.run("insert into sent values (\(2))") }
          }
        }
      }
      let db = memory.pool()
      let queue = WorkQueue<Task>("q", on: db, options: options)
      try queue.add(Task(number: 7), on: db)
      try beside({ try work("cut", on: cut) }) {
        try until { try queue.counts()[.running] == 1 }
        memory.setReachable(false, from: cut)
        try beside({ try work("other", on: other) }) {
          try until { try queue.counts()[.completed] == 1 && !late.all.isEmpty }
        }
      }
      #expect(events.all == ["cut"] && late.all == [.leaseLost])
      #expect(try numbers(memory) == [2])
    }
  }

  @Test func `effects are there once, whatever the order of crashes, cut-offs and statements`() throws {
    let outcomes = Log<Int>()
    let found = explore(.random(seeds: 12)) {
      let world = World.current!
      let memory = WorkMemory(startingAt: Self.start) { _ in
        // A statement takes its time.
        try co_delay(.milliseconds(200))
        return PostgresRows(affected: 1)
      }
      let options = self.options(lease: .seconds(2), attempts: 50)
      for host in 0..<3 {
        world.network.host("worker \(host)") {
          try WorkQueue<Task>("q", on: memory.pool(), options: options).work(concurrency: 2) { job in
            try co_delay(.milliseconds(300))
            try job.finish { t in
              let rows = try t.run("insert into sent values (\(job.payload.number))")
              if rows.affected != 1 || co_fault("handler") { throw Flaky() }
            }
          }
        }
      }
      let db = memory.pool()
      let queue = WorkQueue<Task>("q", on: db, options: options)
      for number in 0..<8 { try queue.add(Task(number: number), on: db, key: number < 4 ? "k" : nil) }
      for host in 0..<3 {
        try co_delay(.milliseconds(350))
        world.network.restart("worker \(host)")
      }
      while try queue.counts()[.completed] != 8 { try co_delay(.milliseconds(500)) }
      let numbers = try self.numbers(memory)
      if numbers.sorted() != Array(0..<8) || numbers.filter({ $0 < 4 }) != [0, 1, 2, 3] {
        throw WrongEffects(numbers: numbers)
      }
      outcomes.add(try queue.jobs(.completed).map(\.attempt).reduce(0, +))
    }
    #expect(found.failure == nil, "\(found.failure.map { "\($0)" } ?? "")")
    // Some attempts were lost.
    #expect(outcomes.all.contains(where: { $0 > 8 }), "\(outcomes.all)")
  }
  private struct WrongEffects: Error {
    var numbers: [Int]
  }

  @Test func `two runs of one seed are the same`() throws {
    func run() throws -> UInt64 {
      let world = World(seed: 5)
      try world.run {
        let memory = WorkMemory(startingAt: Self.start)
        let db = memory.pool()
        let queue = WorkQueue<Task>("q", on: db, options: self.options())
        for number in 0..<20 { try queue.add(Task(number: number), on: db) }
        try beside({ try queue.work { job in if job.attempt == 1 { throw Flaky() } } }) {
          try self.until { try queue.counts()[.completed] == 20 }
        }
      }
      return world.fingerprint
    }
    let first = try run()
    #expect(try run() == first)
  }

  @Test func `a limit of a key holds in the world's time`() throws {
    try inWorld { world, memory in
      var options = options()
      options.keyLimit = WorkKeyLimit(concurrency: 2, count: 4, per: .seconds(60))
      let limited = options
      let begun = Log<Duration>()
      let running = ThreadMutex((now: 0, most: 0))
      let db = memory.pool()
      let queue = WorkQueue<Task>("q", on: db, options: limited)
      try Work.enqueue((0..<12).map { try queue.draft(Task(number: $0), key: "k") }, on: db)
      let work: @Sendable () throws -> Void = {
        try WorkQueue<Task>("q", on: memory.pool(), options: limited).work { _ in
          begun.add(world.now)
          running.withLock { $0 = ($0.now + 1, max($0.most, $0.now + 1)) }
          defer { running.withLock { $0.now -= 1 } }
          try co_delay(.seconds(1))
        }
      }
      try beside(work) { try beside(work) { try until { try queue.counts()[.completed] == 12 } } }
      #expect(running.withLock { $0.most } == 2)
      // Four at once, and one more each 15 seconds.
      let times = begun.all
      #expect(times[3] < .seconds(5) && times[4] >= .seconds(14) && times[11] >= .seconds(119), "\(times)")
      #expect(times[11] < .seconds(140), "\(times)")
    }
  }

  @Test func `a schedule adds each tick once, of two programs and over days`() throws {
    try inWorld { world, memory in
      let schedule = try WorkSchedule.cron("30 4 * * *", in: "Europe/Berlin")
      let run: @Sendable () throws -> Void = {
        let queue = WorkQueue<Double>("reports", on: memory.pool())
        try queue.schedule("daily", schedule) { $0.timeIntervalSince1970 }
      }
      let queue = WorkQueue<Double>("reports", on: memory.pool())
      try beside(run) { try beside(run) { try world.advance(by: .seconds(5 * 86_400)) } }
      let ticks = try queue.jobs(.available).map { try $0.payload.get() }
      #expect(ticks == schedule.ticks(from: Self.start, count: 5).map(\.timeIntervalSince1970))
      #expect(memory.now == Self.start + 5 * 86_400)
    }
  }

  @Test func `a lease has one holder, and its transaction commits only while it is held`() throws {
    try inWorld { world, memory in
      let holders = Log<String>()
      for host in ["a", "b"] {
        world.network.host(host) {
          if host == "b" { try co_delay(.seconds(1)) }
          try memory.pool().lease("leader", ttl: .seconds(30)) { lease in
            holders.add(host)
            _ = try lease.transaction { t in try t.run("insert into led values (\(lease.fence))") }
            try co_delay(.seconds(3_600))
          }
        }
      }
      try world.advance(by: .seconds(100))
      #expect(holders.all == ["a"])
      world.network.crash("a")
      try world.advance(by: .seconds(29))
      #expect(holders.all == ["a"])
      try world.advance(by: .seconds(3))
      #expect(holders.all == ["a", "b"])
      let fences = try numbers(memory)
      #expect(fences.count == 2 && fences[0] < fences[1])
    }
  }

  @Test func `what a job that is given up writes is there once, and a failing discard leaves it to run again`() throws {
    try inWorld { _, memory in
      let db = memory.pool()
      let queue = WorkQueue<Task>("q", on: db, options: options(attempts: 2))
      let (id, _) = try queue.add(Task(number: 3), on: db)
      let tries = ThreadMutex(0)
      let work: @Sendable () throws -> Void = {
        try queue.work(
          onDiscard: { job, error, t in
            try t.run("insert into failed values (\(job.payload.number), \("\(error)"))")
            let count = tries.withLock { tries in
              tries += 1
              return tries
            }
            if count == 1 { throw Flaky() }
          },
          { _ in throw Flaky() }
        )
      }
      try beside(work) { try until { try queue.counts()[.discarded] == 1 } }
      let record = try #require(try queue.job(id))
      #expect(record.attempt == 2 && record.errors == ["flaky", "flaky", "flaky"])
      #expect(try numbers(memory) == [3])
    }
  }
}

// MARK: - Transactions

@Suite("Transactions of a database in memory")
struct MemoryTransactionTests {
  @Test func `a transaction's jobs and statements are there if it commits, and only what its savepoints have kept`()
    async throws
  {
    try await co_launch {
      let memory = WorkMemory()
      let db = memory.pool()
      let queue = WorkQueue<Task>("q", on: db)
      #expect(throws: Flaky.self) {
        try db.transaction { t in
          try queue.enqueue(Task(number: 1), in: t)
          try t.run("insert into a values (1)")
          throw Flaky()
        }
      }
      #expect(try memory.committed.isEmpty && queue.counts()[.available] == 0)
      let hooks = Log<Int>()
      try db.transaction { t in
        try t.run("insert into a values (2)")
        _ = try? t.savepoint { t in
          try queue.enqueue(Task(number: 2), in: t)
          try t.run("insert into a values (3)")
          t.afterCommit { hooks.add(3) }
          throw Flaky()
        }
        t.afterCommit { hooks.add(4) }
        try queue.enqueue(Task(number: 4), in: t)
        #expect(try queue.counts()[.available] == 0)
      }
      #expect(memory.committed.map(\.description) == ["insert into a values (2)"] && hooks.all == [4])
      #expect(try queue.jobs(.available).map { try $0.payload.get().number } == [4])
    }.value
  }

  @Test func `a second transaction with a unique key waits for the first one, and finds what it has left`() async throws
  {
    for commits in [true, false] {
      try await co_launch {
        let db = WorkMemory().pool()
        let queue = WorkQueue<Task>("q", on: db)
        let (added, go) = (Promise<Void>(), Promise<Void>())
        let first = co_launch {
          try? db.transaction { t in
            try queue.enqueue(Task(number: 1), in: t, unique: "u")
            added.fulfill(())
            try co_await(go)
            if !commits { throw Flaky() }
          }
        }
        try co_await(added)
        let second = co_launch(start: .immediate) { try queue.add(Task(number: 2), on: db, unique: "u").isNew }
        #expect(!second.isFinished)
        go.fulfill(())
        try first.join()
        #expect(try second.join() == !commits)
      }.value
    }
  }

  @Test func `transactions that would wait for each other in a circle get the server's code, and run again`()
    async throws
  {
    try await co_launch {
      let db = WorkMemory().pool()
      let queue = WorkQueue<Task>("q", on: db)
      let runs = ThreadMutex(0)
      let both = [Promise<Void>(), Promise<Void>()]
      let hasCommitted = Promise<Void>()
      let jobs = (0..<2).map { number in
        co_launch {
          try db.transaction(retries: 3) { t in
            let run = runs.withLock { count in
              count += 1
              return count
            }
            // Before that they might meet once more.
            if run > 2 { try co_await(hasCommitted) }
            try queue.enqueue(Task(number: 1), in: t, unique: "\(number)")
            both[number].fulfill(())
            try co_await(both[1 - number])
            try queue.enqueue(Task(number: 2), in: t, unique: "\(1 - number)")
          }
          hasCommitted.fulfill(())
        }
      }
      for job in jobs { try job.join() }
      #expect(runs.withLock { $0 } == 3)
      #expect(try queue.counts()[.available] == 2)
    }.value
  }

  @Test func `what a server would refuse before it is sent is refused, and what needs a connection says so`()
    async throws
  {
    try await co_launch {
      let memory = WorkMemory { statement in
        #expect(statement.description == "select name from people where id = $1")
        return PostgresRows(columns: ["name", "born"], rows: [["Ada", 1815], [nil, nil]])
      }
      let db = memory.pool()
      #expect(kind { try db.run("select '\(1)'") } == .decoding)
      #expect(state { try db.run("begin") } == "25000")
      #expect(state { try db.transaction { t in try t.run("rollback") } } == "25000")
      for end in [
        kind { try db.withConnection { _ in } }, kind { try db.listen("c") },
        kind { try db.transaction { t in try t.copyOut("copy a to stdout") { _ in } } },
      ] { #expect(end == .ended) }
      let rows = try db.all("select name from people where id = \(7)", as: (String?, Int?).self)
      #expect(rows.count == 2 && rows[0] == ("Ada", 1815) && rows[1] == (nil, nil))
      #expect(try db.pipeline.first("select name from people where id = \(7)", as: String.self) == "Ada")
      try db.close()
      #expect(kind { try db.run("select 1") } == .ended)
      let other = WorkQueue<Task>("q", on: WorkMemory().pool())
      #expect(kind { try memory.pool().transaction { t in try other.enqueue(Task(number: 1), in: t) } } == .ended)
    }.value
  }
}
#endif
