#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

@testable import CoroutineWork

@Suite("Limits of keys", .serialized, .timeLimit(.minutes(10)))
struct KeyLimitTests {
  private func limited(_ limit: WorkKeyLimit) -> WorkOptions {
    var options = quick(lease: .seconds(60), attempts: 2)
    options.keyLimit = limit
    return options
  }

  @Test func `several workers run as many jobs of a key as its limit, and no more`() async throws {
    try await withSchema { db, schema in
      let options = limited(WorkKeyLimit(concurrency: 3))
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: options)
      try Work.enqueue((0..<60).map { try queue.draft(Task(number: $0), key: "key \($0 % 3)") }, on: db)
      for number in 60..<66 { try queue.add(Task(number: number), on: db, key: "single") }
      for number in 66..<70 { try queue.add(Task(number: number), on: db) }
      let counts = ThreadMutex<[Int: (now: Int, most: Int)]>([:])
      let work: @Sendable () throws -> Void = {
        try WorkQueue<Task>("q", on: db, schema: schema, options: options).work(concurrency: 8) { job in
          let number = job.payload.number
          let key = number < 60 ? number % 3 : number < 66 ? 3 : 4
          counts.withLock { counts in
            var count = counts[key] ?? (0, 0)
            count.now += 1
            count.most = max(count.most, count.now)
            counts[key] = count
          }
          defer { counts.withLock { $0[key]?.now -= 1 } }
          // Long enough for others to claim.
          for _ in 0..<3 { try db.run("select 1") }
          if job.attempt == 1, number % 7 == 0 { throw Flaky() }
        }
      }
      try beside(work) { try beside(work) { try eventually { try queue.counts()[.completed] == 70 } } }
      let most = counts.withLock { $0.mapValues(\.most) }
      #expect((0...3).allSatisfy { (1...3).contains(most[$0] ?? 0) })
      #expect(most.values.contains(3))
    }
  }

  @Test func `claims at once of one key do not exceed its limit, and go around all keys`() async throws {
    try await withSchema { db, schema in
      let limit = WorkKeyLimit(concurrency: 2)
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: limited(limit))
      let table = queue.core.table
      try Work.enqueue((0..<40).map { try queue.draft(Task(number: $0), key: "key \($0 % 4)") }, on: db)
      func claim(_ most: Int, after last: String? = nil) throws -> (jobs: [JobTable.Claimed], last: String?) {
        try db.transaction { t in
          try table.claim(most, limit: limit, after: last, lease: .seconds(60), worker: "w", t)
        }
      }
      let all = try co_scope { scope in
        try (0..<5).map { _ in scope.launch { try (0..<4).flatMap { _ in try claim(3).jobs } } }.flatMap {
          try $0.join()
        }
      }
      let byKey = Dictionary(grouping: all) { $0.key }
      #expect(byKey.count == 4 && byKey.values.allSatisfy { $0.count == 2 })
      // An end makes room.
      _ = try table.end(all.map { JobEnd(id: $0.id, fence: $0.fence, kind: .complete) }, db)
      let first = try claim(1)
      let second = try claim(1, after: first.last)
      let third = try claim(1, after: second.last)
      #expect([first, second, third].map(\.last) == ["key 0", "key 1", "key 2"])
    }
  }

  @Test func `no more jobs of a key begin in a period than its limit`() async throws {
    try await withSchema { db, schema in
      let limit = WorkKeyLimit(concurrency: 100, count: 3, per: .seconds(3_600))
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: limited(limit))
      let table = queue.core.table
      try Work.enqueue((0..<20).map { try queue.draft(Task(number: $0), key: "key \($0 % 2)") }, on: db)
      func claim() throws -> [Int] {
        let jobs = try db.transaction { t in
          try table.claim(50, limit: limit, after: nil, lease: .seconds(60), worker: "w", t).jobs
        }
        return Dictionary(grouping: jobs) { $0.key }.values.map(\.count)
      }
      #expect(try claim() == [3, 3])
      #expect(try claim() == [])
      func pass(_ time: String) throws {
        try db.run("update \(identifier: schema).key set tokens_at = tokens_at - \(time)::text::interval")
      }
      // A third of the period, and then a long time, of which no more is saved up than for one period.
      try pass("21 min")
      #expect(try claim() == [1, 1])
      try pass("1 day")
      #expect(try claim() == [3, 3])
      #expect(try claim() == [])
    }
  }

  @Test func `a key that has used up its rate keeps out no other, and an empty key is a key`() async throws {
    try await withSchema { db, schema in
      let limit = WorkKeyLimit(concurrency: 100, count: 1, per: .seconds(3_600))
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: limited(limit))
      try Work.enqueue(["a", "a", "a", "b", ""].map { try queue.draft(Task(number: 0), key: $0) }, on: db)
      func claim() throws -> [String?] {
        try db.transaction { t in
          try queue.core.table.claim(1, limit: limit, after: nil, lease: .seconds(60), worker: "w", t).jobs.map(\.key)
        }
      }
      #expect(try [claim(), claim(), claim(), claim()] == [[""], ["a"], ["b"], []])
      for seconds in [Double.infinity, -.infinity, .nan] {
        let never = try queue.draft(Task(number: 0), at: Date(timeIntervalSince1970: seconds))
        #expect(throws: PostgresError.self) { try Work.enqueue([never], on: db) }
      }
    }
  }

  @Test func `thousands of keys that have used up their rate keep out no other`() async throws {
    try await withSchema { db, schema in
      let options = limited(WorkKeyLimit(concurrency: 100, count: 1, per: .seconds(3_600)))
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: options)
      try Work.enqueue((0..<2_500).map { try queue.draft(Task(number: $0), key: "a\($0)") }, on: db)
      try db.run(
        """
        insert into \(identifier: schema).key (queue, key, tokens, tokens_at)
        select queue, limit_key, 0, now() from \(identifier: schema).job
        """
      )
      let last = try queue.add(Task(number: 0), on: db, key: "z")
      try beside {
        try queue.work { _ in }
      } _: {
        try co_timeout(.seconds(300)) { try eventually { try queue.job(last.id)?.state == .completed } }
      }
      #expect(try queue.counts()[.available] == 2_500)
    }
  }

  @Test func `a job that fails holds up no other of its key, and time alone lets the next ones begin`() async throws {
    try await withSchema { db, schema in
      var options = limited(WorkKeyLimit(concurrency: 1, count: 2, per: .milliseconds(200)))
      options.backoff = { _ in .seconds(3_600) }
      options.poll = .seconds(3_600)
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: options)
      try Work.enqueue((0..<6).map { try queue.draft(Task(number: $0), key: "k") }, on: db)
      let start = ContinuousClock.now
      try beside {
        try queue.work { job in if job.payload.number == 0 { throw Flaky() } }
      } _: {
        try eventually { try queue.counts()[.completed] == 5 }
      }
      // Two at once, and four more of which each waits for a tenth of a second.
      #expect(ContinuousClock.now - start >= .milliseconds(390))
      #expect(try queue.counts()[.retryable] == 1)
    }
  }
}
#endif
