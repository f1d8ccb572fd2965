#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

@testable import CoroutineWork

/// Random programs on a server and in memory: what comes back, and what is stored, is the same after each step.
@Suite("A database in memory and the server", .serialized, .timeLimit(.minutes(10)))
struct MemoryAgainstServerTests {
  @Test(arguments: [nil, WorkKeyLimit(concurrency: 2), WorkKeyLimit(concurrency: 3, count: 2, per: .seconds(3_600))])
  func `a program leaves the same jobs in memory as on a server`(_ limit: WorkKeyLimit?) async throws {
    try await withSchema(limit: .seconds(500)) { db, schema in
      for seed in 0..<12 {
        var program = Program(seed: UInt64(seed), limit: limit, db, schema)
        for _ in 0..<60 { try program.step() }
        // The program has done something.
        #expect(program.done.count > 5)
      }
    }
  }

  /// One of the two.
  private struct Side {
    let db: PostgresPool
    let queue: WorkQueue<Task>
    /// The jobs in the order of their addition.
    var ids: [Int64] = []
    /// The fences of the claims, in their order.
    var fences: [Int64] = []
    /// Lets the time pass, by moving all that is stored into the past.
    let pass: (Duration) throws -> Void

    var table: JobTable { queue.core.table }
    var upkeep: Upkeep { Upkeep(schema: queue.core.schema, memory: db.link) }

    func number(_ id: Int64) -> Int { ids.firstIndex(of: id) ?? -1 }

    /// What is stored, without numbers and times of its own.
    func jobs() throws -> [String] {
      try WorkState.allCases.flatMap { state in
        try queue.jobs(state, limit: 1_000).map { job in
          let times = "\(job.leaseEnds != nil) \(job.endedAt != nil)"
          return
            "\(number(job.id)) \(job.state) \(job.attempt)/\(job.attempts) \(times) \(job.worker ?? "-") \(job.errors)"
            + " \(try job.payload.get().number)"
        }
      }
    }

    func look() throws -> String {
      var found: Upkeep.Found?
      repeat {
        found = try upkeep.look([queue.core.queue], most: 100, db)[queue.core.queue]
        if found?.hasMarks == true { _ = try upkeep.free([queue.core.queue], after: nil, db) }
      } while found?.next == .zero
      // The next time in minutes: the two clocks differ by what lies between the two.
      let next = found?.next.map { ($0 / .seconds(60)).rounded() }
      return "\(found?.isReady ?? false) \(next.map { "\($0)" } ?? "-")"
    }
  }

  private struct Program {
    var random: SeededGenerator
    var server: Side
    var memory: Side
    let limit: WorkKeyLimit?
    /// Claims that may still be held: which job, and which of the fences.
    var held: [(job: Int, claim: Int)] = []
    var last: String?
    var steps: [String] = []
    var done: Set<String> = []

    init(seed: UInt64, limit: WorkKeyLimit?, _ db: PostgresPool, _ schema: String) {
      random = SeededGenerator(seed: seed)
      self.limit = limit
      var options = quick(lease: .seconds(3_600), attempts: 3)
      options.keyLimit = limit
      let name = uniqueName("q")
      let queue = WorkQueue<Task>(name, on: db, schema: schema, options: options)
      server = Side(db: db, queue: queue) { time in
        let step: SQL = "\(time.milliseconds) * interval '1 ms'"
        try db.run(
          """
          update \(queue.core.table.job) set at = at - \(step), lease_ends = lease_ends - \(step),
            ended_at = ended_at - \(step) where queue = \(name)
          """
        )
        try db.run("update \(identifier: schema).key set tokens_at = tokens_at - \(step) where queue = \(name)")
      }
      let own = WorkMemory()
      let pool = own.pool()
      memory = Side(db: pool, queue: WorkQueue(name, on: pool, schema: schema, options: options)) { time in
        own.state.withLock { state in
          for id in state.jobs.keys {
            state.jobs[id]?.rules.at -= time.microseconds
            state.jobs[id]?.rules.leaseEnds? -= time.microseconds
            state.jobs[id]?.endedAt? -= time.microseconds
          }
          for key in state.buckets.keys { state.buckets[key]?.at -= time.microseconds }
        }
      }
    }

    mutating func pick(_ count: Int) -> Int { Int.random(in: 0..<count, using: &random) }
    mutating func chance(_ one: Int) -> Bool { pick(one) == 0 }

    /// Does the same on both sides, and compares the answers.
    mutating func both<R: Equatable>(_ name: String, _ body: (inout Side) throws -> R) throws -> R {
      steps.append(name)
      func text(_ side: inout Side) -> (String, R?) {
        do {
          let result = try body(&side)
          return ("\(result)", result)
        } catch let error as PostgresError { return ("\(error.kind) \(error.sqlState?.rawValue ?? "")", nil) } catch {
          return (error is WorkError ? "WorkError" : "\(error)", nil)
        }
      }
      let (expected, result) = text(&server)
      let (found, _) = text(&memory)
      #expect(found == expected, "\(steps.suffix(12))")
      if found == expected { done.insert(String(name.prefix { $0 != " " })) }
      guard let result else { throw Refused() }
      return result
    }
    struct Refused: Error {}

    mutating func step() throws {
      do { try act() } catch is Refused {}
      steps.append("compare")
      let (expected, found) = (try server.jobs(), try memory.jobs())
      try #require(found == expected, "\(steps.suffix(16))")
    }

    private mutating func draft() -> (
      number: Int, unique: String?, key: String?, priority: Int, at: Double?
    ) {
      let key = chance(2) ? "k\(pick(3))" : nil
      // Not on the minute at which a look may be.
      return (
        pick(1_000), chance(3) ? "u\(pick(3))" : nil, key, pick(3), chance(3) ? Double(pick(5) - 2) * 1_800 + 600 : nil
      )
    }

    private mutating func act() throws {
      switch pick(20) {
      case 0, 1, 2:
        let new = draft()
        let rollsBack = chance(5)
        _ = try both("add \(new)") { side in
          let at = new.at.map { (side.db.link?.memory.now ?? Date()).addingTimeInterval($0) }
          var added: (id: Int64, isNew: Bool)?
          do {
            try side.db.transaction { t in
              added = try side.queue.enqueue(
                Task(number: new.number),
                in: t,
                unique: new.unique,
                key: new.key,
                priority: new.priority,
                at: at
              )
              if rollsBack { throw Flaky() }
            }
          } catch is Flaky { return "rolled back \(added?.isNew ?? false)" }
          guard let added else { return "" }
          if added.isNew { side.ids.append(added.id) }
          return "\(side.number(added.id)) \(added.isNew)"
        }
      case 3:
        let new = (0..<1 + pick(4)).map { _ in draft() }
        _ = try both("drafts \(new)") { side in
          let queue = side.queue
          let now = side.db.link?.memory.now ?? Date()
          let drafts = try new.map { new in
            try queue.draft(
              Task(number: new.number),
              unique: new.unique,
              key: new.key,
              priority: new.priority,
              at: new.at.map { now.addingTimeInterval($0) }
            )
          }
          let added = try Work.enqueue(drafts, on: side.db)
          side.ids += added.filter(\.isNew).map(\.id)
          return added.map { "\(side.number($0.id)) \($0.isNew)" }
        }
      case 4:
        _ = try both("add all") { side in
          try side.db.transaction { t in try side.queue.enqueue(all: [Task(number: 1), Task(number: 2)], in: t) }
          let all = try side.queue.jobs(.available, limit: 1_000).map(\.id)
          side.ids += all.filter { !side.ids.contains($0) }
          return side.ids.count
        }
      case 5, 6, 7, 8: try claim()
      case 9, 10, 11, 12: try end()
      case 13:
        guard !held.isEmpty else { return }
        let all = held.filter { _ in chance(2) }
        _ = try both("extend \(all)") { side in
          let jobs = all.map { (id: side.ids[$0.job], fence: side.fences[$0.claim]) }
          return try side.table.extend(jobs, lease: .seconds(3_600), side.db)
            .map { "\(side.number($0.0)) \($0.1)" }.sorted()
        }
      case 14:
        guard let one = held.randomElement(using: &random) else { return }
        let renews = chance(2)
        _ = try both("\(renews ? "renew" : "save") \(one)") { side in
          renews
            ? try side.table.renew(side.ids[one.job], fence: side.fences[one.claim], lease: .seconds(5_400), side.db)
            : try side.table.save(side.ids[one.job], fence: side.fences[one.claim], checkpoint: [1], side.db)
        }
      case 15:
        guard !server.ids.isEmpty else { return }
        let job = pick(server.ids.count)
        _ = try both("cancel \(job)") { side in
          try side.queue.cancel(side.ids[job])
          return true
        }
      case 16:
        guard !server.ids.isEmpty else { return }
        let job = pick(server.ids.count)
        _ = try both("retry \(job)") { side in
          try side.queue.retry(side.ids[job])
          return true
        }
      case 17:
        let pauses = chance(4)
        _ = try both(pauses ? "pause" : "resume") { side in
          if pauses { try side.queue.pause() } else { try side.queue.resume() }
          return true
        }
      case 18:
        let kept = Duration.seconds(3_600 * (1 + pick(3)))
        _ = try both("prune \(kept)") { side in
          var options = WorkOptions()
          (options.keepCompleted, options.keepDiscarded) = (kept, kept * 2)
          return try side.upkeep.prune([(side.queue.core.queue, options)], most: 100, side.db)
        }
      default:
        let time = Duration.seconds(1_800 * (1 + pick(3)))
        _ = try both("pass \(time)") { side in
          try side.pass(time)
          return try side.look()
        }
      }
    }

    private mutating func claim() throws {
      let (most, before) = (1 << pick(3), last)
      let worker = "w\(pick(2))"
      if chance(6) {
        let kept = held.filter { _ in chance(2) }
        _ = try both("release of \(worker) but \(kept)") { side in
          try side.table.releaseUnknown(worker: worker, but: kept.map { side.ids[$0.job] }, side.db)
          return true
        }
      }
      let limit = chance(2) ? limit : nil
      let claimed = try both("claim \(most) \(limit.map { "\($0)" } ?? "")") { side -> [String] in
        _ = try side.look()
        let jobs: [JobTable.Claimed]
        if let limit {
          let found = try side.db.transaction { t in
            try side.table.claim(most, limit: limit, after: before, lease: .seconds(3_600), worker: worker, t)
          }
          // Which key was the last.
          jobs = found.jobs
          side.fences.append(contentsOf: found.jobs.map(\.fence))
          return jobs.map { "\(side.number($0.id)) \($0.attempt) \($0.key ?? "-")" } + [found.last ?? "-"]
        }
        jobs = try side.table.claim(most, lease: .seconds(3_600), worker: worker, side.db)
        side.fences.append(contentsOf: jobs.map(\.fence))
        return jobs.map { "\(side.number($0.id)) \($0.attempt)/\($0.attempts) \($0.key ?? "-") \($0.checkpoint ?? [])" }
      }
      if limit != nil { last = claimed.last.flatMap { $0 == "-" ? nil : $0 } }
      let jobs = limit == nil ? claimed : Array(claimed.dropLast())
      let first = server.fences.count - jobs.count
      for (index, text) in jobs.enumerated() {
        held.append((job: Int(text.prefix { $0.isNumber }) ?? 0, claim: first + index))
      }
    }

    private mutating func end() throws {
      guard !held.isEmpty else { return }
      let one = held[pick(held.count)]
      if !chance(5) { held.removeAll { $0.claim == one.claim } }
      let kinds: [JobEnd.Kind] = [.complete, .delete, .fail, .fail, .discard, .snooze, .release]
      let kind = kinds[pick(kinds.count)]
      let waits = chance(2)
      let wait = waits && (kind == .fail || kind == .snooze) ? Duration.seconds(3_000) : .zero
      let way = pick(4)
      _ = try both("end \(kind) \(wait) \(way) of \(one)") { side in
        let (id, fence) = (side.ids[one.job], side.fences[one.claim])
        let end = JobEnd(id: id, fence: fence, kind: kind, wait: wait, error: kind == .complete ? "" : "e")
        switch way {
        case 0:
          // As `finish` does, or it throws after that.
          return try side.db.transaction { t in
            guard try side.table.lock(id, fence: fence, t) else { return "not held" }
            return "\(try side.table.complete(id, fence: fence, hasKey: true, isDeleted: false, t))"
          }
        case 1:
          // As an end with effects.
          var state: String?
          do {
            try side.db.transaction { t in
              guard try side.table.lock(id, fence: fence, t) else { return }
              state = try side.table.end([end], t)[id]
              if waits { throw Flaky() }
            }
          } catch is Flaky { return "undone \(state ?? "-")" }
          return state ?? "-"
        default: return try side.table.end([end], side.db)[id] ?? "-"
        }
      }
    }
  }
}

/// Splitmix: the same numbers in each run.
private struct SeededGenerator: RandomNumberGenerator {
  var state: UInt64
  init(seed: UInt64) { state = seed }
  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var z = state
    z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
    z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
    return z ^ (z >> 31)
  }
}
#endif
