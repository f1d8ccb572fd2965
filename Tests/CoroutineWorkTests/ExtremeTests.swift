#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

@testable import CoroutineWork

/// Each public option and value of CoroutineWork at its extremes.
///
/// Two things may happen: it works, or an error says what is wrong, at once. Never a trap, a lost job, or a loop.
@Suite("Extremes of durable work", .serialized, .timeLimit(.minutes(10)))
struct ExtremeTests {
  private static let durations: [Duration] = [
    .zero, .nanoseconds(-1), .seconds(Int64.min), .nanoseconds(1), .seconds(Int64.max), .seconds(Int64.max) * 18,
  ]

  /// One option at one extreme.
  private struct Case: Sendable, CustomTestStringConvertible {
    let name: String
    let set: @Sendable (inout WorkOptions) -> Void
    var testDescription: String { name }
  }

  private static let cases: [Case] = {
    var all: [Case] = []
    for duration in durations {
      all += [
        Case(name: "lease \(duration)") { $0.lease = duration },
        Case(name: "poll \(duration)") { $0.poll = duration },
        Case(name: "keepCompleted \(duration)") { $0.keepCompleted = duration },
        Case(name: "keepDiscarded \(duration)") { $0.keepDiscarded = duration },
        Case(name: "period of keyLimit \(duration)") {
          $0.keyLimit = WorkKeyLimit(concurrency: 1, count: 1_000, per: duration)
        },
      ]
    }
    for number in [Int.min, -1, 0, .max] {
      all += [
        Case(name: "attempts \(number)") { $0.attempts = number },
        Case(name: "concurrency of keyLimit \(number)") { $0.keyLimit = WorkKeyLimit(concurrency: number) },
        Case(name: "count of keyLimit \(number)") { $0.keyLimit = WorkKeyLimit(concurrency: 9, count: max(number, 1)) },
      ]
    }
    return all
  }()

  /// Once, unless its lease has ended: the shortest is a second, which may pass on a busy machine.
  @Test func `with an option at its extreme each job runs to its end, once`() async throws {
    try await withSchema(connections: 10, limit: .seconds(500)) { db, schema in
      for one in Self.cases {
        var options = quick(attempts: 50)
        one.set(&options)
        let queue = WorkQueue<Task>(one.name, on: db, schema: schema, options: options)
        let ids = try (0..<3).map { try queue.add(Task(number: $0), on: db, key: $0 == 0 ? nil : "key").id }
        let ran = Log<Int64>()
        try beside {
          try queue.work { ran.add($0.id) }
        } _: {
          // One that is kept for no time is gone.
          try co_timeout(.seconds(200)) {
            try eventually { try ids.allSatisfy { try queue.job($0).map { $0.state == .completed } ?? true } }
          }
        }
        let runs = options.lease < .seconds(10) ? Set(ran.all).sorted() : ran.all.sorted()
        #expect(runs == ids.sorted(), "\(one.name)")
      }
    }
  }

  @Test(arguments: durations)
  func `a failed job waits for as long as its backoff says, but never less than nothing`(_ wait: Duration) async throws
  {
    try await withSchema { db, schema in
      var options = quick(attempts: 2)
      options.backoff = { _ in wait }
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: options)
      let (id, _) = try queue.add(Task(number: 1), on: db)
      let failed = Promise<Void>()
      try beside {
        try queue.work(onEvent: { if case .failed = $0 { failed.fulfill() } }) { _ in throw Flaky() }
      } _: {
        try co_await(failed)
        try eventually {
          try queue.job(id)?.state == (wait > .seconds(1) ? .retryable : .discarded)
        }
      }
    }
  }

  @Test(arguments: durations)
  func `an attempt with a limit that is over fails, and one with a limit that never ends does not`(
    _ limit: Duration
  ) async throws {
    try await withSchema { db, schema in
      var options = quick(attempts: 1)
      options.timeout = limit
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: options)
      let (id, _) = try queue.add(Task(number: 1), on: db)
      try beside {
        try queue.work { _ in
          if limit < .seconds(1) { try co_delay(.seconds(60)) }
        }
      } _: {
        let end: WorkState = limit < .seconds(1) ? .discarded : .completed
        try eventually { try queue.job(id)?.state == end }
      }
    }
  }

  @Test func `any number of handlers works, from one on`() async throws {
    try await withSchema { db, schema in
      for concurrency in [1, .max] {
        let queue = WorkQueue<Task>("q \(concurrency)", on: db, schema: schema, options: quick())
        try queue.add(Task(number: 1), on: db)
        try beside {
          try queue.work(concurrency: concurrency) { _ in }
        } _: {
          try eventually { try queue.counts()[.completed] == 1 }
        }
      }
    }
  }

  @Test func `a value that no row can hold is an error at once, and nothing is added`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      for priority in [Int.min, Int(Int32.max) + 1, .max] {
        #expect(throws: PostgresError.self) { try queue.add(Task(number: 1), on: db, priority: priority) }
        #expect(throws: PostgresError.self) {
          try db.transaction { try queue.enqueue(all: [Task(number: 1)], in: $0, priority: priority) }
        }
        #expect(throws: PostgresError.self) {
          try Work.enqueue([try queue.draft(Task(number: 1), priority: priority)], on: db)
        }
      }
      for text in ["\0", "a\0b"] {
        #expect(throws: PostgresError.self) { try queue.add(Task(number: 1), on: db, key: text) }
        #expect(throws: PostgresError.self) { try queue.add(Task(number: 1), on: db, unique: text) }
        #expect(throws: PostgresError.self) { try queue.add(Task(number: 1, text: text), on: db) }
      }
      #expect(throws: PostgresError.self) {
        try queue.add(Task(number: 1), on: db, at: Date(timeIntervalSince1970: .nan))
      }
      let counts = try queue.counts()
      #expect(counts.values.allSatisfy { $0 == 0 })
      for (limit, id) in [(Int.min, 0), (0, 0), (.max, Int64.min), (.max, .max)] {
        let found = try queue.jobs(.available, limit: limit, after: id)
        #expect(found.isEmpty)
      }
      for id in [Int64.min, 0, .max] {
        #expect(try queue.job(id) == nil)
        #expect(throws: WorkError.noSuchJob(id)) { try queue.retry(id) }
        #expect(throws: WorkError.noSuchJob(id)) { try queue.cancel(id) }
      }
    }
  }

  @Test func `a job of any date is available, or waits for its date`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      let early = [Date.distantPast, Date(timeIntervalSince1970: -1), Date(timeIntervalSince1970: 0)]
      for date in early { try queue.add(Task(number: 1), on: db, at: date) }
      let (late, _) = try queue.add(Task(number: 2), on: db, at: .distantFuture)
      for seconds in [Double.infinity, -.infinity, .greatestFiniteMagnitude, 1e18] {
        // Either the server has such a date, or the call says that it has not.
        do {
          try queue.add(Task(number: 3), on: db, at: Date(timeIntervalSince1970: seconds))
        } catch is PostgresError {}
      }
      try beside {
        try queue.work { _ in }
      } _: {
        try eventually { try queue.counts()[.completed]! >= early.count }
      }
      #expect(try queue.job(late)?.state == .scheduled)
    }
  }

  @Test(arguments: durations)
  func `a lease of any length is held while its body runs`(_ length: Duration) async throws {
    try await withSchema { db, _ in
      try Work.migrate(db)
      let name = uniqueName("lease")
      let isShort = length < .seconds(9)
      /// Again, if the shortest lease was lost: it is a second, which may pass on a busy machine.
      func unlessLost<R>(_ body: () throws -> R) throws -> R {
        while true {
          do { return try body() } catch let error as PostgresError where isShort && error.kind == .leaseLost {}
        }
      }
      let isHeld = try unlessLost {
        try db.lease(name, ttl: length) { lease in
          if try db.tryLease(name, ttl: length, { _ in true }) == nil { return true }
          // Then this one throws, if it was lost before.
          try lease.transaction { _ in }
          return false
        }
      }
      #expect(isHeld)
      // A short lease ends by itself if it is not given back. That it is, the long ones test: they are asked once.
      var isFree: Bool?
      repeat {
        isFree = try unlessLost { try db.tryLease(name, ttl: length) { _ in true } }
      } while isFree == nil && isShort
      #expect(isFree == true)
    }
  }

  @Test func `a period of any length has ticks, or says that it has none`() throws {
    for period in [Duration.seconds(1), .seconds(1e9), .seconds(Int64.max), .seconds(Int64.max) * 18] {
      let schedule = WorkSchedule.every(period)
      for date in [Date(timeIntervalSince1970: 0), .distantPast, .distantFuture, Date(timeIntervalSince1970: .nan)] {
        for count in [Int.min, 0, 3] {
          let ticks = schedule.ticks(from: date, count: count)
          #expect(ticks.count <= max(count, 0))
          #expect(zip(ticks, ticks.dropFirst()).allSatisfy { $0 < $1 }, "\(period) \(date)")
          #expect(ticks.allSatisfy { $0 >= date }, "\(period) \(date)")
        }
      }
    }
  }
}
#endif
