#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

@testable import CoroutineWork

@Suite("What the workers of a program share", .serialized, .timeLimit(.minutes(10)))
struct StationTests {
  @Test func `claims, leases and reports go on while the program uses all connections of its pool`() async throws {
    let address = try Cluster.shared.get().address
    try await withSchema(connections: 2) { db, schema in
      let other = try PostgresPool(address)
      defer { co_shield { try? other.close(drain: .zero) } }
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(lease: .seconds(24), attempts: 1))
      let seen = WorkQueue<Task>("q", on: other, schema: schema)
      let ids = try (0..<4).map { try queue.add(Task(number: $0), on: db).id }
      let (isHeld, mayEnd) = (Latch(2), Latch(1))
      try co_scope { scope in
        for _ in 0..<2 {
          scope.launch {
            try db.withConnection { _ in
              isHeld.countDown()
              try mayEnd.wait()
            }
          }
        }
        try isHeld.wait()
        try beside {
          try queue.work { job in
            let first = try seen.job(job.id)?.leaseEnds
            try eventually { try seen.job(job.id)?.leaseEnds != first }
            switch job.payload.number {
            case 0: return
            case 1: throw Flaky()
            case 2: try job.snooze(.seconds(3_600))
            default: try job.discard("no")
            }
          }
        } _: {
          try eventually { try ids.allSatisfy { try ![.available, .running].contains(seen.job($0)?.state) } }
        }
        mayEnd.countDown()
      }
      #expect(try ids.map { try seen.job($0)?.state } == [.completed, .discarded, .scheduled, .discarded])
    }
  }

  @Test func `a worker backs off after claims in vain, each time for longer, and not after one that took a job`() {
    var backoff = ClaimBackoff()
    let start = ContinuousClock.Instant.steady
    #expect(backoff.left(at: start) <= .zero)
    for (time, length) in [(700, 700), (100, 1_400), (4_000, 4_000), (100, 5_000), (9_000, 5_000)] {
      backoff.claimed(0, in: .microseconds(time), now: start)
      #expect(backoff.left(at: start) == .microseconds(length))
    }
    // Later than that a bell has its claim at once.
    #expect(backoff.left(at: start + .milliseconds(5)) == .zero)
    backoff.claimed(1, in: .seconds(1), now: start)
    #expect(backoff.left(at: start) == .zero)
    backoff.claimed(0, in: .microseconds(700), now: start)
    #expect(backoff.left(at: start) == .microseconds(700))
  }

  @Test func `many idle queues cost a transaction each poll`() async throws {
    let cluster = try Cluster()
    try await withPool(on: cluster) { db in
      try Work.migrate(db)
      func transactions() throws -> Int {
        try db.run("select pg_stat_clear_snapshot()")
        return try db.first(
          "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()",
          as: Int.self
        ) ?? 0
      }
      try co_scope { scope in
        for number in 0..<40 {
          let queue = WorkQueue<Task>("q\(number)", on: db)
          scope.launch { try queue.work { _ in } }
        }
        // Until all have begun: a job of each is done.
        for number in 0..<40 {
          let queue = WorkQueue<Task>("q\(number)", on: db)
          try queue.add(Task(number: number), on: db)
          try eventually { try queue.counts()[.completed] == 1 }
        }
        // The server's counts come late, so several windows. Each question is two transactions.
        try co_timeout(.seconds(300)) {
          var (before, count) = (try transactions(), Int.max)
          while count > 10 {
            try co_delay(.seconds(4))
            let now = try transactions()
            (before, count) = (now, now - before)
          }
        }
        scope.cancel()
      }
    }
  }

  @Test func `an idle worker finds jobs of a dead one when their lease ends, and its own when they are due`()
    async throws
  {
    try await withSchema { db, schema in
      // Also the longest time between two looks.
      var options = quick(lease: .seconds(10))
      options.poll = .seconds(3_600)
      options.usesNotifications = false
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: options)
      let attempts = Log<Int>()
      try beside {
        try queue.work { job in attempts.add(job.attempt) }
      } _: {
        // It has begun, and is idle.
        try queue.add(Task(number: 0), on: db)
        try eventually { try queue.counts()[.completed] == 1 }
        try db.run(
          """
          insert into \(queue.core.table.job) (queue, state, attempt, attempts, payload, fence, lease_ends, worker)
          values ('q', 'running', 1, 3, '{"number": 1, "text": ""}', nextval(\(queue.core.table.fenceName)::regclass),
            now() + interval '1 s', 'one that was killed')
          """
        )
        try eventually { try queue.counts()[.completed] == 2 }
        try queue.add(Task(number: 2), on: db, at: Date() + 0.1)
        try eventually { try queue.counts()[.completed] == 3 }
      }
      #expect(attempts.all == [1, 2, 1])
    }
  }

  @Test(arguments: [true, false])
  func `a worker, a schedule and a lease whose pool is closed throw at once`(usesNotifications: Bool) async throws {
    try await withSchema { db, schema in
      try Work.migrate(db)
      let pool = try PostgresPool(try Cluster.shared.get().address)
      var options = quick(lease: .seconds(60))
      options.poll = .seconds(3_600)
      options.usesNotifications = usesNotifications
      let queue = WorkQueue<Task>("q", on: pool, schema: schema, options: options)
      let (id, _) = try queue.add(Task(number: 1), on: db)
      let (begun, isLeader) = (Latch(1), Latch(1))
      let name = uniqueName("lease")
      let kinds = try co_scope { scope in
        let jobs: [Job<PostgresError.Kind?>] = [
          scope.launch {
            kind {
              try queue.work { _ in
                begun.countDown()
                try co_delay(.seconds(3_600))
              }
            }
          },
          scope.launch { kind { try queue.schedule("s", .every(.seconds(3_600))) { _ in Task(number: 2) } } },
          scope.launch {
            kind {
              try pool.lease(name, ttl: .seconds(15)) { _ in
                isLeader.countDown()
                try co_delay(.seconds(3_600))
              }
            }
          },
        ]
        try begun.wait()
        try isLeader.wait()
        try eventually { try db.first("select count(*) from \(identifier: schema).schedule", as: Int.self) == 1 }
        try pool.close()
        return try jobs.map { try $0.join() }
      }
      #expect(kinds == [.ended, .ended, .ended])
      #expect(kind { try queue.work { _ in } } == .ended)
      #expect(kind { try queue.schedule("s", .every(.seconds(1))) { _ in Task(number: 2) } } == .ended)
      #expect(kind { try pool.lease(name) { _ in } } == .ended)
      // Its job runs again after its lease, or has been given back.
      let seen = WorkQueue<Task>("q", on: db, schema: schema)
      #expect([.available, .running].contains(try seen.job(id)?.state))
    }
  }

  @Test(arguments: [Duration.seconds(Int64.max), .seconds(1e15), .zero])
  func `any time for which jobs are kept leaves retries and schedules alone`(keep: Duration) async throws {
    try await withSchema { db, schema in
      var options = quick()
      (options.keepCompleted, options.keepDiscarded) = (keep, keep)
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: options)
      try queue.add(Task(number: 0), on: db, at: Date() + 0.05)
      let (again, done) = (Promise<Void>(), Promise<Void>())
      try beside {
        try queue.work { job in
          if job.payload.number == 0 {
            if job.attempt == 1 { throw Flaky() }
            again.fulfill(())
          } else {
            done.fulfill(())
          }
        }
      } _: {
        try co_await(again)
        try beside {
          try queue.schedule("s", .every(.seconds(1))) { _ in Task(number: 1) }
        } _: {
          try co_await(done)
        }
      }
    }
  }

  enum Outage: CaseIterable, Sendable { case ended, silent }

  @Test(arguments: Outage.allCases)
  func `a stop ends soon after its limit, also if the server does not answer`(outage: Outage) async throws {
    // Not as long as a connection, a lease or a limit of the server lasts. A busy machine may add to it now and then.
    var took = try await timeOfStop(outage)
    for _ in 0..<2 where took >= .seconds(9) { took = try await timeOfStop(outage) }
    #expect(took < .seconds(9))
  }

  /// How long a scope with a worker, a schedule and a lease takes to stop within a second.
  private func timeOfStop(_ outage: Outage) async throws -> Duration {
    let cluster = try Cluster()
    var options = PostgresPool.Options()
    // What may be under way at the stop waits for as long.
    options.cancelTimeout = .seconds(2)
    return try await withPool(options, on: cluster) { db in
      try Work.migrate(db)
      let queue = WorkQueue<Task>("q", on: db, options: quick())
      try db.transaction { t in try queue.enqueue(all: (0..<4).map { Task(number: $0) }, in: t) }
      let (begun, mayEnd) = (Latch(4), Latch(1))
      let all = "\(cluster.postmaster) $(pgrep -P \(cluster.postmaster))"
      defer { if outage == .silent { _ = try? co_blocking { try cluster.run("kill -CONT \(all)") } } }
      return try co_scope { scope in
        let name = uniqueName("lease")
        let leads = Promise<Void>()
        let jobs: [Job<Void>] = [
          scope.launch {
            try? queue.work { job in
              // Once each, also if this takes so long that the schedule adds a job, or a lease ends.
              if job.payload.number < 4, job.attempt == 1 { begun.countDown() }
              try mayEnd.wait()
              switch job.payload.number {
              case 0: throw Flaky()
              case 1: try job.discard("no")
              case 2: try co_delay(.seconds(3_600))
              default: return
              }
            }
          },
          scope.launch { try? queue.schedule("s", .every(.seconds(1))) { _ in Task(number: 9) } },
          scope.launch {
            try? db.lease(name) { _ in
              leads.fulfill(())
              try co_delay(.seconds(3_600))
            }
          },
        ]
        try begun.wait()
        try co_await(leads)
        try co_blocking {
          if outage == .ended { return cluster.stop("immediate") }
          // First who makes others; one of these may end meanwhile.
          let each = "for one in $(pgrep -P \(cluster.postmaster)); do kill -STOP $one 2>/dev/null; done"
          try cluster.run("kill -STOP \(cluster.postmaster) || exit; \(each); true")
        }
        mayEnd.countDown()
        let start = ContinuousClock.now
        scope.stop(within: .seconds(1))
        for job in jobs { try? job.join() }
        return ContinuousClock.now - start
      }
    }
  }

  @Test func `a batch that does not fit is halved until it does, and grows again`() throws {
    let size = BatchSize(16)
    func attempt(fits most: Int) -> [Int] {
      var tried: [Int] = []
      for _ in 0..<7 {
        _ = try? size.running { count in
          tried.append(count)
          if count > most { throw Flaky() }
        }
      }
      return tried
    }
    #expect(attempt(fits: 0) == [16, 8, 4, 2, 1, 1, 1])
    #expect(attempt(fits: 100) == [1, 2, 4, 8, 16, 16, 16])
  }

  @Test func `an end whose row is locked holds up no other, and is told when the lock has gone`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(lease: .seconds(60)))
      // The last one is marked as waiting: it is far behind others of its key.
      for number in 0..<12 { try queue.add(Task(number: number), on: db, key: number < 2 ? nil : "k") }
      let table = queue.core.table
      let claimed = try table.claim(8, lease: .seconds(60), worker: "w", db)
      #expect(claimed.map(\.key) == [nil, nil, "k"])
      let ends = JobEnds(db, schema: schema)
      let first = JobEnd(id: claimed[0].id, fence: claimed[0].fence, kind: .complete)
      let job: SQL = "\(identifier: schema).job"
      let begun = ContinuousClock.now
      let locked = try db.transaction { t in
        try t.run("select 1 from \(job) where id = \(first.id) or waits for update")
        let locked = ends.send(first)
        for next in claimed.dropFirst() {
          let state = try co_await(ends.send(JobEnd(id: next.id, fence: next.fence, kind: .complete)))
          #expect(state == "completed")
        }
        // Told that the row is locked after four seconds, which may pass on a busy machine.
        #expect(!locked.isSettled || ContinuousClock.now - begun >= .seconds(4))
        return locked
      }
      let end: String?
      do { end = try co_await(locked) } catch let error as PostgresError
        where error.sqlState == .lockNotAvailable && ContinuousClock.now - begun >= .seconds(4)
      {
        end = try co_await(ends.send(first))
      }
      #expect(end == "completed")
      // In a transaction of its own it waits.
      #expect(try table.end([first], db) == [:])
    }
  }

  @Test func `rows that others have locked hold up no connection of the reserve`() async throws {
    try await withSchema { db, schema in
      try Work.migrate(db)
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(lease: .seconds(60)))
      let table = queue.core.table
      for number in 0..<4 { try queue.add(Task(number: number), on: db) }
      let claimed = try table.claim(4, lease: .seconds(60), worker: "w", db)
      let name = uniqueName("lease")
      guard case .lease(let lease) = try Lease.take(name, holder: "h", ttl: .seconds(60), on: db) else {
        Issue.record("somebody else has the lease")
        return
      }
      let begun = Log<Int64>()
      let isRenewed = try co_scope { scope in
        let renewals = try db.transaction { t in
          try t.run("select 1 from \(identifier: schema).job where id <> \(claimed[3].id) for update")
          try t.run("select 1 from work.lease where name = \(name) for update")
          let renewals = claimed.prefix(3).map { job in
            scope.launch {
              begun.add(job.id)
              return try table.renew(job.id, fence: job.fence, lease: .seconds(60), db.reserve)
            }
          }
          try eventually { begun.all.count == 3 }
          try co_timeout(.seconds(60)) {
            #expect(try table.renew(claimed[3].id, fence: claimed[3].fence, lease: .seconds(60), db.reserve))
            #expect(state { try lease.extend() } == "55P03")
            try table.releaseUnknown(worker: "w", but: [], db.reserve)
          }
          return renewals
        }
        return try renewals.map { try $0.join() }
      }
      #expect(isRenewed == [true, true, true])
      #expect(try queue.counts()[.available] == 1)
      try lease.extend()
    }
  }

  /// The seconds for which this thread has had a processor.
  private func processorTime() -> Double {
    var time = timespec()
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
    return Double(time.tv_sec) + Double(time.tv_nsec) / 1e9
  }

  @Test func `thousands of queues are made in little time`() async throws {
    try await withSchema { db, schema in
      let start = processorTime()
      let queues = (0..<20_000).map { WorkQueue<Task>("q \($0)", on: db, schema: schema) }
      // Looked through for each new one, the others would take several times as long.
      #expect(processorTime() - start < 30)
      #expect(queues.count == 20_000)
    }
  }

  @Test func `ends of jobs that come at once are one statement, and each is told its own`() async throws {
    try await withSchema { db, schema in
      var options = quick(lease: .seconds(60))
      options.keepCompleted = .zero
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: options)
      try db.transaction { t in try queue.enqueue(all: (0..<6).map { Task(number: $0) }, in: t) }
      let claimed = try queue.core.table.claim(6, lease: .seconds(60), worker: "w", db)
      let kinds: [JobEnd.Kind] = [.complete, .delete, .fail, .discard, .snooze, .release]
      let ends = JobEnds(db, schema: schema)
      let answers = zip(claimed, kinds).map { job, kind in
        ends.send(
          JobEnd(
            id: job.id,
            fence: job.fence,
            kind: kind,
            wait: kind == .fail || kind == .snooze ? .seconds(60) : .zero,
            error: "e"
          )
        )
      }
      let late = ends.send(JobEnd(id: claimed[0].id, fence: claimed[0].fence - 1, kind: .complete))
      let states = try answers.map { try co_await($0) }
      #expect(states == ["completed", "completed", "retryable", "discarded", "scheduled", "available"])
      #expect(try co_await(late) == nil)
      #expect(try queue.job(claimed[1].id) == nil)
    }
  }
}
#endif
