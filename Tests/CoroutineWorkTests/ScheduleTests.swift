#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

@testable import CoroutineWork

@Suite("Schedules", .serialized, .timeLimit(.minutes(10)))
struct ScheduleTests {
  private func date(_ text: String) -> Date {
    guard let date = try? Date(text, strategy: .iso8601) else { preconditionFailure("\(text) is no date") }
    return date
  }

  /// Runs `body` with a clock of the server's that the test sets, and with a queue of ticks.
  private func withClock<R: Sendable>(
    _ body:
      @escaping @Sendable (PostgresPool, WorkQueue<Double>, _ clock: SQL, _ set: (Double) throws -> Void) throws -> R
  ) async throws -> R {
    try await withSchema { db, schema in
      try db.run("create table \(identifier: schema).clock (now timestamptz)")
      try db.run("insert into \(identifier: schema).clock values (now())")
      let queue = WorkQueue<Double>("q", on: db, schema: schema, options: quick())
      return try body(db, queue, "(select now from \(identifier: schema).clock)") { time in
        try db.run("update \(identifier: schema).clock set now = to_timestamp(\(time))")
      }
    }
  }

  private func look(_ clock: ScheduleClock, _ queue: WorkQueue<Double>, isFirst: Bool = false) throws {
    let core = queue.core
    _ = try core.db.transaction(retries: 5) { t in
      try clock.look(t, isFirst: isFirst) { ticks, t in
        try Work.enqueue(ticks.map { WorkDraft(core: core, payload: "\($0)", unique: "\($0)") }, on: t)
      }
    }
  }

  private func added(_ queue: WorkQueue<Double>) throws -> [Double] {
    try queue.jobs(.available, limit: 10_000).map { try $0.payload.get() }
  }

  @Test(
    arguments: ["*/20 * * * *", "30 2 * * *", "15,45 2,3 * * *"],
    ["2026-03-28T20:00:00Z", "2026-10-24T20:00:00Z"]
  )
  func `every tick is added once over a change of summer time, by several programs`(
    fields: String,
    from: String
  ) async throws {
    let start = date(from).timeIntervalSince1970
    let schedule = try WorkSchedule.cron(fields, in: "Europe/Berlin")
    try await withClock { db, queue, expression, set in
      let clocks = (0..<3).map { _ in
        ScheduleClock(queue.core, name: "s", schedule: schedule, missed: .latest, clock: expression)
      }
      try set(start)
      for clock in clocks { try look(clock, queue, isFirst: true) }
      var now = start
      while now < start + 36 * 3_600 {
        // Each look is at most one tick later; the programs look in any order, and not each time.
        now += Double.random(in: 60...600).rounded()
        try set(now)
        for clock in clocks.shuffled().prefix(Int.random(in: 1...3)) { try look(clock, queue) }
      }
      for clock in clocks { try look(clock, queue) }
      let expected = schedule.ticks(from: date(from) + 1, count: 10_000).map(\.timeIntervalSince1970).prefix {
        $0 <= now
      }
      #expect(try added(queue) == Array(expected))
    }
  }

  @Test func `programs that look at once add each tick once`() async throws {
    try await withClock { db, queue, expression, set in
      let schedule = WorkSchedule.every(.seconds(10))
      try set(1_000_005)
      let core = queue.core
      for round in 0..<10 {
        try set(1_000_005 + Double(round) * 10)
        try co_scope { scope in
          for _ in 0..<5 {
            scope.launch {
              let clock = ScheduleClock(core, name: "s", schedule: schedule, missed: .latest, clock: expression)
              try self.look(clock, queue, isFirst: true)
            }
          }
        }
      }
      #expect(try added(queue) == (1...9).map { 1_000_000 + Double($0) * 10 })
    }
  }

  @Test func `a schedule whose row another program has locked waits without a connection`() async throws {
    try await withClock { db, queue, expression, set in
      func program(_ seconds: Int) -> ScheduleClock {
        ScheduleClock(queue.core, name: "s", schedule: .every(.seconds(seconds)), missed: .latest, clock: expression)
      }
      try set(1_005)
      try look(program(10), queue, isFirst: true)
      let next = program(100)
      try db.transaction { t in
        try t.run("select 1 from \(identifier: queue.core.schema).schedule for update")
        try set(1_105)
        try co_timeout(.seconds(40)) { try look(next, queue, isFirst: true) }
        #expect(!next.hasLooked)
      }
      #expect(try added(queue) == [])
      // Still its first look: it replaces the other one.
      try look(next, queue, isFirst: true)
      #expect(next.hasLooked)
      try set(1_205)
      try look(next, queue)
      #expect(try added(queue) == [1_200])
    }
  }

  @Test func `ticks that no program was there for are skipped, added once, or added up to a number`() async throws {
    let cases: [(WorkSchedule.Missed, [Double])] = [
      (.skip, []), (.latest, [1_900]), (.all(most: 3), [1_700, 1_800, 1_900]),
      (.all(most: 100), [1_100, 1_200, 1_300, 1_400, 1_500, 1_600, 1_700, 1_800, 1_900]), (.all(most: 0), []),
    ]
    for (missed, expected) in cases {
      try await withClock { db, queue, expression, set in
        func program() -> ScheduleClock {
          ScheduleClock(queue.core, name: "s", schedule: .every(.seconds(100)), missed: missed, clock: expression)
        }
        try set(1_050)
        try look(program(), queue, isFirst: true)
        try set(1_950)
        let late = program()
        try look(late, queue, isFirst: true)
        #expect(try added(queue) == expected)
        // From now on it is there; a tick that it sees a little late is not missed.
        try set(2_015)
        try look(late, queue)
        #expect(try added(queue) == expected + [2_000])
      }
    }
  }

  @Test func `another schedule under the same name replaces the old one from its next tick on`() async throws {
    try await withClock { db, queue, expression, set in
      let old = ScheduleClock(
        queue.core,
        name: "s",
        schedule: .every(.seconds(100)),
        missed: .all(most: 99),
        clock: expression
      )
      try set(1_050)
      try look(old, queue, isFirst: true)
      try set(1_101)
      try look(old, queue)
      let new = ScheduleClock(
        queue.core,
        name: "s",
        schedule: .every(.seconds(30)),
        missed: .all(most: 99),
        clock: expression
      )
      try look(new, queue, isFirst: true)
      try set(1_201)
      try look(old, queue)
      try look(new, queue)
      #expect(try added(queue) == [1_100, 1_110, 1_140, 1_170, 1_200])
    }
  }

  @Test func `a server's clock that is set back, or jumps ahead, adds no tick twice`() async throws {
    try await withClock { db, queue, expression, set in
      let clocks = (0..<2).map { _ in
        ScheduleClock(queue.core, name: "s", schedule: .every(.seconds(100)), missed: .latest, clock: expression)
      }
      try set(1_050)
      for clock in clocks { try look(clock, queue, isFirst: true) }
      for time in [1_101.0, 1_201, 1_099, 1_105, 1_205, 1_301, 9_950, 1_320, 9_990, 10_001] {
        try set(time)
        for clock in clocks.shuffled() { try look(clock, queue) }
      }
      // After the jump ahead the last tick is added, for all that were missed.
      #expect(try added(queue) == [1_100, 1_200, 1_300, 9_900, 10_000])
    }
  }

  @Test(arguments: [1, 7, 1_000])
  func `many missed ticks are added by several transactions, each once and in their order`(most: Int) async throws {
    try await withClock { db, queue, expression, set in
      func program() -> ScheduleClock {
        ScheduleClock(queue.core, name: "s", schedule: .every(.seconds(100)), missed: .all(most: 50), clock: expression)
      }
      try set(1_050)
      try look(program(), queue, isFirst: true)
      // 60 ticks, of which the last 50 are added; then the program dies, and another one goes on.
      try set(7_050)
      var clock = program()
      var (looks, isFirst) = (0, true)
      let core = queue.core
      while true {
        let wait = try core.db.transaction { t in
          try clock.look(t, isFirst: isFirst, most: most) { ticks, t in
            try Work.enqueue(ticks.map { WorkDraft(core: core, payload: "\($0)", unique: "\($0)") }, on: t)
          }
        }
        looks += 1
        isFirst = false
        if looks == 4 { (clock, isFirst) = (program(), true) }
        if wait > .milliseconds(1) { break }
      }
      #expect(try added(queue) == (21...70).map { Double($0) * 100 }.filter { $0 > 2_000 })
      #expect(most > 50 || looks > 50 / most)
    }
  }

  @Test func `a payload that cannot be encoded ends the schedule with an error`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Double>("q", on: db, schema: schema, options: quick())
      #expect(kind { try queue.schedule("s", .every(.seconds(1))) { _ in .nan } } == .decoding)
      let ticks = try added(queue)
      #expect(ticks == [])
    }
  }

  // A schedule has no events, so what is repeated for ever would be silence.
  @Test func `what the server refuses each time ends the schedule with an error`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      let random = String((0..<9_000).map { _ in Character(UnicodeScalar(UInt8.random(in: 65...90))) })
      #expect(state { try queue.schedule("a\0b", .every(.seconds(1))) { _ in Task(number: 1) } } == "22021")
      #expect(state { try queue.schedule(random, .every(.seconds(1))) { _ in Task(number: 1) } } == "54000")
      #expect(kind { try queue.schedule("s", .every(.seconds(1))) { _ in Task(number: 1, text: "\0") } } == .decoding)
      // A rule of the program's own.
      try db.run("alter table \(identifier: schema).job add check (payload->>'text' <> 'no')")
      #expect(state { try queue.schedule("c", .every(.seconds(1))) { _ in Task(number: 1, text: "no") } } == "23514")
      #expect(try queue.counts().values.allSatisfy { $0 == 0 })
    }
  }

  // What is over soon, and what an operator does, is repeated.
  @Test(arguments: ["08006", "53300", "55P03", "57014", "58030", "25006", "26000", "40001"])
  func `what another try may mend does not end the schedule`(code: String) async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      try db.run(
        """
        create function \(identifier: schema).refuse() returns trigger language plpgsql as $$ begin
          if nextval('\(identifier: schema).tries') < 3 then
            raise 'no' using errcode = '\(SQL(unchecked: code))';
          end if;
          return new;
        end $$
        """
      )
      // A sequence counts what is rolled back, too.
      try db.run("create sequence \(identifier: schema).tries")
      try db.run(
        """
        create trigger refuse before insert on \(identifier: schema).schedule for each row
          execute function \(identifier: schema).refuse()
        """
      )
      try beside({ try queue.schedule("s", .every(.seconds(1))) { _ in Task(number: 1) } }) {
        try eventually { try queue.counts()[.available]! >= 1 }
      }
    }
  }

  @Test func `a schedule adds jobs by the real clock, in two programs at once`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Double>("q", on: db, schema: schema, options: quick())
      let run: @Sendable () throws -> Void = {
        try queue.schedule("s", .every(.seconds(1))) { $0.timeIntervalSince1970 }
      }
      try beside(run) { try beside(run) { try eventually { try queue.counts()[.available]! >= 2 } } }
      let ticks = try added(queue)
      #expect(zip(ticks, ticks.dropFirst()).allSatisfy { $0 < $1 })
      #expect(ticks.allSatisfy { $0 == $0.rounded() })
    }
  }
}
#endif
