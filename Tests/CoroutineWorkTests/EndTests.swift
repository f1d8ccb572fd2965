#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

@testable import CoroutineWork

@Suite("Jobs that are given up, and leases that are asked for", .serialized, .timeLimit(.minutes(10)))
struct EndTests {
  enum Route: CaseIterable, Sendable { case lastFailure, discard, timeout, outlastsItsLease, cancelled, succeeds }

  @Test(arguments: Route.allCases)
  func `what onDiscard writes is there if and when the job is discarded`(route: Route) async throws {
    try await withSchema { db, schema in
      var options = quick(lease: .seconds(60), attempts: 2)
      // Long enough for what `onDiscard` does, which has the same limit.
      if route == .timeout { options.timeout = .milliseconds(500) }
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: options)
      let effect: SQL = "\(identifier: schema).effect"
      try db.run("create table \(effect) (job bigint, number int, attempt int, error text)")
      let (id, _) = try queue.add(Task(number: 7), on: db)
      let events = Log<String>()
      try beside {
        try queue.work(
          onEvent: { event in
            switch event {
            case .failed(_, let attempt, _): events.add("failed \(attempt)")
            case .discarded: events.add("discarded")
            case .leaseLost: events.add("lost")
            default: break
            }
          },
          onDiscard: { job, error, t in
            try t.run("insert into \(effect) values (\(job.id), \(job.payload.number), \(job.attempt), \("\(error)"))")
          },
          { job in
            switch route {
            case .lastFailure: throw Flaky()
            case .discard: try job.discard("no use")
            case .timeout: try co_delay(.seconds(3_600))
            case .outlastsItsLease where job.attempt == 1:
              // Another worker has it by now.
              try db.run(
                """
                update \(identifier: schema).job set fence = fence + 1000000, attempt = 2, worker = 'another'
                where id = \(id)
                """
              )
              try job.discard("no use")
            case .cancelled where job.attempt == 2:
              try queue.cancel(id)
              throw Flaky()
            case .cancelled: throw Flaky()
            case .succeeds, .outlastsItsLease: return
            }
          }
        )
      } _: {
        try eventually {
          route == .outlastsItsLease ? events.all == ["lost"] : try queue.job(id)?.endedAt != nil
        }
        if route != .succeeds { try eventually { !events.all.isEmpty } }
      }
      let found = try db.all("select job, number, attempt from \(effect)", as: (Int64, Int, Int).self)
      let expected = [Route.lastFailure: 2, .discard: 1, .timeout: 2][route]
      #expect(found.map(\.2) == [expected].compactMap { $0 })
      #expect(found.allSatisfy { $0.0 == id && $0.1 == 7 })
      let state = try queue.job(id)?.state
      #expect(
        state == [Route.succeeds: .completed, .cancelled: .cancelled, .outlastsItsLease: .running][route] ?? .discarded
      )
    }
  }

  @Test func `a job whose onDiscard throws runs again until it does not`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(attempts: 1))
      let (id, _) = try queue.add(Task(number: 1), on: db)
      let runs = Log<Int>()
      try beside {
        try queue.work(
          onDiscard: { _, _, t in
            try t.run("select 1")
            if runs.all.count < 3 { throw Flaky(description: "not yet") }
          },
          { job in
            runs.add(job.attempt)
            throw Flaky()
          }
        )
      } _: {
        try eventually { try queue.job(id)?.state == .discarded }
      }
      #expect(runs.all == [1, 1, 1])
      #expect(try queue.job(id)?.errors == ["not yet", "not yet", "flaky"])
    }
  }

  @Test func `renew extends the lease of a job that is held, and throws for one that is not`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(lease: .seconds(3_600)))
      let ids = try (0..<3).map { try queue.add(Task(number: $0), on: db).id }
      let job: SQL = "\(identifier: schema).job"
      let log = Log<String>()
      try beside {
        try queue.work(onEvent: { if case .leaseLost = $0 { log.add("lost") } }) { running in
          switch running.payload.number {
          case 0:
            try db.run("update \(job) set lease_ends = now() + interval '1 min' where id = \(running.id)")
            try running.renew()
            let left = try db.first(
              "select lease_ends > now() + interval '1 h' - interval '1 min' from \(job) where id = \(running.id)",
              as: Bool.self
            )
            log.add("extended \(left == true)")
            return
          case 1: try db.run("update \(job) set fence = fence + 1000000 where id = \(running.id)")
          default: try queue.cancel(running.id)
          }
          log.add("\(kind { try running.renew() } == .leaseLost)")
          try running.finish { _ in log.add("an effect") }
        }
      } _: {
        try eventually { log.all.count == 5 }
        try eventually { try queue.job(ids[0])?.state == .completed }
      }
      #expect(log.all.sorted() == ["extended true", "lost", "lost", "true", "true"])
      #expect(try queue.job(ids[2])?.state == .cancelled)
    }
  }

  @Test func `jobs of several queues, keys and dates are added by one statement, each once`() async throws {
    try await withSchema { db, schema in
      func queue(_ name: String) -> WorkQueue<Task> {
        WorkQueue<Task>(name, on: db, schema: schema, options: quick(lease: .seconds(60)))
      }
      let (mails, bills) = (queue("mails"), queue("bills"))
      let there = try mails.add(Task(number: 0), on: db, unique: "there").id
      func drafts() throws -> [WorkDraft] {
        try [
          mails.draft(Task(number: 1, text: "it's \"\\ é"), unique: "a"), bills.draft(Task(number: 2), key: ""),
          mails.draft(Task(number: 3), unique: "a"), mails.draft(Task(number: 4), unique: "there"),
          bills.draft(Task(number: 5), unique: "", key: "k", at: Date() + 3_600),
          bills.draft(Task(number: 6), priority: -1),
          bills.draft(Task(number: 7)),
        ]
      }
      #expect(throws: Flaky.self) {
        try db.transaction { t in
          try Work.enqueue(drafts(), on: t)
          throw Flaky()
        }
      }
      #expect(try bills.counts()[.available] == 0)
      let added = try Work.enqueue(drafts(), on: db)
      #expect(added.map(\.isNew) == [true, true, false, false, true, true, true])
      #expect(added[2].id == added[0].id && added[3].id == there)
      let ids = added.filter(\.isNew).map(\.id)
      #expect(ids == ids.sorted())
      #expect(try mails.job(added[0].id)?.payload.get() == Task(number: 1, text: "it's \"\\ é"))
      #expect(try bills.job(added[4].id)?.state == .scheduled)
      #expect(try bills.job(added[5].id)?.payload.get().number == 6)
      let again = try db.transaction { t in try Work.enqueue(drafts(), on: t) }
      #expect(again.map(\.isNew) == [false, true, false, false, false, true, true])
      #expect(try Work.enqueue([], on: db).isEmpty)
      let done = Log<Int>()
      try beside {
        try bills.work(concurrency: 1) { done.add($0.payload.number) }
      } _: {
        try eventually { done.all.count == 6 }
      }
      #expect(done.all == [6, 6, 2, 7, 2, 7])
    }
  }

  @Test func `jobs that are added without a transaction wake a worker at once, and a line of a key is marked`()
    async throws
  {
    try await withSchema { db, schema in
      var options = quick(lease: .seconds(60))
      options.poll = .seconds(3_600)
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: options)
      let done = Log<Int>()
      try beside {
        try queue.work { done.add($0.payload.number) }
      } _: {
        try Work.enqueue((0..<30).map { try queue.draft(Task(number: $0), key: "k") }, on: db)
        try eventually { done.all.count == 30 }
        try Work.enqueue([queue.draft(Task(number: 30), at: Date() + 0.1)], on: db)
        try eventually { done.all.count == 31 }
      }
      #expect(done.all == Array(0...30))
      try queue.pause()
      try Work.enqueue((0..<30).map { try queue.draft(Task(number: $0), key: "k") }, on: db)
      try Work.enqueue((0..<30).map { try queue.draft(Task(number: $0), key: "k") }, on: db)
      #expect(try db.first("select count(*) from \(queue.core.table.job) where waits", as: Int.self) == 52)
    }
  }
}
#endif
