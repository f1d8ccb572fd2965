#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

@testable import CoroutineWork

/// The model's rules and the statements say the same about every step.
@Suite("The statements and the rules", .serialized, .timeLimit(.minutes(10)))
struct RulesAgainstServerTests {
  @Test func `a row goes through the states of the rules, whatever the steps`() async throws {
    try await withSchema { db, schema in
      var random = Generator(state: 20_261_127)
      for _ in 0..<40 { try compare(db, schema, &random) }
    }
  }

  /// Splitmix: the same steps in each run.
  private struct Generator: RandomNumberGenerator {
    var state: UInt64
    mutating func next() -> UInt64 {
      state &+= 0x9E37_79B9_7F4A_7C15
      var z = state
      z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
      z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
      return z ^ (z >> 31)
    }
  }

  private func compare(_ db: PostgresPool, _ schema: String, _ random: inout Generator) throws {
    let queue = WorkQueue<Task>(uniqueName("q"), on: db, schema: schema, options: quick(attempts: 3))
    let table = queue.core.table
    let (id, _) = try queue.add(Task(number: 1), on: db)
    var rules = JobRules(attempts: 3, at: 0, now: 0)
    var steps: [String] = []
    // An hour in the past or the future: the real clock never comes into it.
    let hour = Duration.seconds(3_600)
    for _ in 0..<30 {
      let fence = Bool.random(using: &random) || Bool.random(using: &random) ? rules.fence : rules.fence - 1
      let delay = Bool.random(using: &random) ? 1 : 0
      let wait = delay == 1 ? hour : .zero
      let step = Int.random(in: 0..<12, using: &random)
      steps.append("\(step) fence \(fence) delay \(delay)")
      func end(_ kind: JobEnd.Kind) throws -> Bool {
        let wait = kind == .fail || kind == .snooze ? wait : .zero
        return try table.end([JobEnd(id: id, fence: fence, kind: kind, wait: wait, error: "e")], db)[id] != nil
      }
      /// Whether the look has changed the job.
      func look() throws -> Bool {
        let before = try queue.job(id)?.state
        _ = try Upkeep(schema: schema).look([queue.core.queue], most: 10, db)
        return try queue.job(id)?.state != before
      }
      let (expected, found): (Bool, Bool)
      switch step {
      case 0, 1, 2:
        let claimed = try table.claim(5, lease: hour, worker: "w", db)
        expected = rules.claim(fence: claimed.first?.fence ?? 0, now: 0, lease: 1)
        found = claimed.count == 1
      case 3:
        expected = rules.finish(fence: fence)
        if Bool.random(using: &random) {
          found = try db.transaction { t in
            try table.complete(id, fence: fence, hasKey: Bool.random(using: &random), isDeleted: false, t)
          }
        } else {
          found = try end(.complete)
        }
      case 4:
        expected = rules.fail(fence: fence, now: 0, delay: delay)
        found = try end(.fail)
      case 5:
        expected = rules.snooze(fence: fence, now: 0, delay: delay)
        found = try end(.snooze)
      case 6:
        expected = rules.release(fence: fence)
        found = try end(.release)
      case 7:
        expected = rules.discard(fence: fence)
        found = try end(.discard)
      case 8:
        let answer = rules.extend(fence: fence, now: 0, lease: 1)
        let state = try table.extend([(id, fence)], lease: hour, db).first?.1
        expected = true
        found = state == (answer == .lost ? nil : answer == .kept ? "running" : "cancelled")
      case 9:
        // The lease ends, and somebody looks.
        try db.run("update \(table.job) set lease_ends = now() - interval '1 s' where id = \(id) and state = 'running'")
        expected = rules.rescue(now: 2)
        found = try look()
      case 10:
        expected = rules.cancel()
        found = (try? queue.cancel(id)) != nil
      default:
        expected = rules.retry(now: 0)
        found = (try? queue.retry(id)) != nil
      }
      if Bool.random(using: &random) {
        // Its time comes.
        try db.run("update \(table.job) set at = now() where id = \(id) and state in ('scheduled', 'retryable')")
        let isDue = try look()
        #expect(isDue == rules.becomeDue(now: 1), "\(steps)")
      }
      let record = try #require(try queue.job(id))
      #expect(expected == found, "\(steps)")
      #expect(record.state == rules.state && record.attempt == rules.attempt, "\(steps)")
      #expect(record.attempts == rules.attempts && (record.leaseEnds == nil) == (rules.leaseEnds == nil), "\(steps)")
      #expect((record.endedAt != nil) == rules.state.isFinal, "\(steps)")
    }
  }
}
#endif
