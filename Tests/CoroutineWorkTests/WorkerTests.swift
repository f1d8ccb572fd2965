#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

@testable import CoroutineWork

@Suite("Workers and their leases", .serialized, .timeLimit(.minutes(10)))
struct WorkerTests {
  /// Takes a job away from its worker, as the end of its lease does.
  private func expire(_ id: Int64, _ db: PostgresPool, _ schema: String) throws {
    try db.run("update \(identifier: schema).job set lease_ends = now() - interval '1 s' where id = \(id)")
  }

  /// Whether a job was claimed once, also if it was given back.
  private func wasClaimed(_ id: Int64, _ db: PostgresPool, _ schema: String) throws -> Bool {
    try db.first("select fence is not null from \(identifier: schema).job where id = \(id)", as: Bool.self) == true
  }

  @Test func `a job that outlives its lease runs again, and the first attempt's effects are refused`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(lease: .seconds(60)))
      let (id, _) = try queue.add(Task(number: 1), on: db)
      try db.run("create table \(identifier: schema).effect (attempt int)")
      let refused = Log<PostgresError.Kind>()
      let hasRun = Latch(1)
      // One job at a time: the second attempt is the other worker's.
      let work: @Sendable () throws -> Void = {
        try queue.work(concurrency: 1) { job in
          if job.attempt == 1 {
            try expire(id, db, schema)
            // The second attempt finishes first.
            try hasRun.wait()
            do {
              try job.finish { t in try t.run("insert into \(identifier: schema).effect values (1)") }
            } catch let error as PostgresError {
              refused.add(error.kind)
              throw error
            }
          } else {
            try job.finish { t in try t.run("insert into \(identifier: schema).effect values (2)") }
            hasRun.countDown()
          }
        }
      }
      try beside(work) {
        try beside(work) {
          try eventually { try !refused.all.isEmpty && queue.job(id)?.state == .completed }
        }
      }
      #expect(refused.all == [.leaseLost])
      #expect(try db.all("select attempt from \(identifier: schema).effect", as: Int.self) == [2])
    }
  }

  enum Foreign: Int, CaseIterable { case lease, renew, save, finish, snooze }

  // Errors of another job or of a lease say nothing of this job.
  @Test func `a handler that throws the loss of something else has failed`() async throws {
    try await withSchema(connections: 10) { db, schema in
      let other = WorkQueue<Task>("other", on: db, schema: schema, options: quick(lease: .seconds(60)))
      let (lost, _) = try other.add(Task(number: 0), on: db)
      let taken = ThreadMutex<WorkJob<Task>?>(nil)
      let (hasJob, mayEnd) = (Latch(1), Latch(1))
      let holder: @Sendable () throws -> Void = {
        try other.work { job in
          try db.run("update \(identifier: schema).job set fence = fence + 1000000 where id = \(lost)")
          taken.withLock { $0 = job }
          hasJob.countDown()
          try mayEnd.wait()
        }
      }
      try beside(holder) {
        defer { mayEnd.countDown() }
        try hasJob.wait()
        let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(lease: .seconds(60), attempts: 2))
        let ids = try Foreign.allCases.map { try queue.add(Task(number: $0.rawValue), on: db).id }
        let events = Log<String>()
        let onEvent: @Sendable (WorkEvent) -> Void = { event in
          switch event {
          case .failed(let id, let attempt, _): events.add("\(id) failed \(attempt)")
          case .leaseLost(let id): events.add("\(id) lost")
          default: break
          }
        }
        let work: @Sendable () throws -> Void = {
          try queue.work(onEvent: onEvent) { job in
            guard let foreign = taken.withLock({ $0 }) else { return }
            switch Foreign(rawValue: job.payload.number) {
            case .lease: throw RunningJob.loss(1)
            case .renew: try foreign.renew()
            case .save: try foreign.save([1])
            case .finish: try foreign.finish { _ in }
            default: try foreign.snooze(.seconds(1))
            }
          }
        }
        try beside(work) {
          try eventually { try queue.counts()[.discarded] == ids.count && events.all.count >= 2 * ids.count }
        }
        for id in ids {
          #expect(try queue.job(id)?.errors.count == 2)
          #expect(events.all.filter { $0.hasPrefix("\(id) ") } == ["\(id) failed 1", "\(id) failed 2"])
        }
      }
    }
  }

  @Test func `a lease that another worker has taken cancels the handler`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(lease: .seconds(12)))
      let (id, _) = try queue.add(Task(number: 1), on: db)
      let log = Log<String>()
      try beside {
        try queue.work(
          onEvent: { if case .leaseLost(let lost) = $0 { log.add("lost \(lost == id)") } },
          { job in
            guard job.attempt == 1 else { return }
            try db.run("update \(identifier: schema).job set fence = fence + 1000000 where id = \(id)")
            do { try co_delay(.seconds(3_600)) } catch {
              log.add("cancelled")
              throw error
            }
          }
        )
      } _: {
        try eventually { log.all.count == 2 }
      }
      #expect(Set(log.all) == ["lost true", "cancelled"])
    }
  }

  @Test func `leases are extended while handlers run, also while effects are written`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(lease: .seconds(20)))
      let ids = try (0..<2).map { try queue.add(Task(number: $0), on: db).id }
      try beside {
        try queue.work { job in
          let first = try queue.job(job.id)?.leaseEnds
          func isExtended() throws -> Bool { try queue.job(job.id)?.leaseEnds != first }
          if job.payload.number == 0 {
            try eventually(isExtended)
          } else {
            try job.finish { _ in try eventually(isExtended) }
          }
        }
      } _: {
        try eventually { try queue.counts()[.completed] == 2 }
      }
      #expect(try ids.allSatisfy { try queue.job($0)?.attempt == 1 })
    }
  }

  @Test func `cancelling a running job cancels its handler, and a waiting one ends at once`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(lease: .seconds(6)))
      let (waiting, _) = try queue.add(Task(number: 1), on: db, at: Date() + 3_600)
      try queue.cancel(waiting)
      #expect(try queue.job(waiting)?.state == .cancelled)
      let (id, _) = try queue.add(Task(number: 2), on: db)
      let begun = Promise<Void>()
      let ended = Promise<Void>()
      try beside {
        try queue.work { _ in
          begun.fulfill(())
          defer { ended.fulfill(()) }
          try co_delay(.seconds(3_600))
        }
      } _: {
        try co_await(begun)
        try queue.cancel(id)
        try co_await(ended)
        // If its lease was lost before the worker has asked, the next look cancels it.
        try eventually { try queue.job(id)?.state == .cancelled }
      }
    }
  }

  @Test func `an attempt that takes longer than its limit has failed`() async throws {
    try await withSchema { db, schema in
      var options = quick(attempts: 1)
      options.timeout = .milliseconds(30)
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: options)
      let (id, _) = try queue.add(Task(number: 1), on: db)
      try beside {
        try queue.work { _ in try co_delay(.seconds(3_600)) }
      } _: {
        try eventually { try queue.job(id)?.state == .discarded }
      }
    }
  }

  // Claims have few sizes, so this room takes several claims.
  @Test func `a worker runs as many jobs at once as it was told, whatever the number is`() async throws {
    try await withSchema { db, schema in
      for room in [1, 7, 11, 25] {
        let queue = WorkQueue<Task>("q\(room)", on: db, schema: schema, options: quick(lease: .seconds(60)))
        for number in 0..<room + 3 { try queue.add(Task(number: number), on: db) }
        let (begun, mayEnd, all) = (Latch(room), Latch(1), Latch(room + 3))
        let most = ThreadMutex(0)
        try beside {
          try queue.work(concurrency: room) { _ in
            let count = most.withLock { most in
              most += 1
              return most
            }
            if count <= room { begun.countDown() }
            try mayEnd.wait()
            all.countDown()
          }
        } _: {
          try begun.wait()
          #expect(try queue.counts()[.running] == room)
          #expect(most.withLock { $0 } == room)
          mayEnd.countDown()
          try all.wait()
        }
      }
    }
  }

  @Test func `the next job is claimed during a COMMIT, and begins after the handler`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(lease: .seconds(60)))
      let lock = Int64.random(in: 1 ... .max)
      try db.run("create table \(identifier: schema).effect (n int)")
      try db.run(
        """
        create function \(identifier: schema).waits() returns trigger language plpgsql as
          $$ begin perform pg_advisory_xact_lock(\(SQL(unchecked: "\(lock)"))); return null; end $$
        """
      )
      try db.run(
        """
        create constraint trigger waits after insert on \(identifier: schema).effect deferrable initially deferred
          for each row execute function \(identifier: schema).waits()
        """
      )
      let ids = try (0..<2).map { try queue.add(Task(number: $0), on: db).id }
      let events = Log<String>()
      try db.withConnection { connection in
        try connection.run("select pg_advisory_lock(\(lock))")
        try beside {
          try queue.work(concurrency: 1) { job in
            events.add("begins \(job.payload.number)")
            try job.finish { t in try t.run("insert into \(identifier: schema).effect values (\(job.payload.number))") }
            events.add("ends \(job.payload.number)")
          }
        } _: {
          // Claimed, that is: one that waits for a second is given back.
          try eventually { try ids.allSatisfy { try wasClaimed($0, db, schema) } }
          #expect(events.all == ["begins 0"])
          try connection.run("select pg_advisory_unlock(\(lock))")
          try eventually { try ids.allSatisfy { try queue.job($0)?.state == .completed } }
        }
      }
      #expect(events.all == ["begins 0", "ends 0", "begins 1", "ends 1"])
      #expect(try queue.jobs(.completed).allSatisfy { $0.attempt == 1 })
    }
  }

  enum End: CaseIterable { case handlersGoOn, stop, cancellation }

  // Two handlers that go on have left room for two claims, and a job is claimed once all the same.
  @Test(arguments: End.allCases)
  func `a job that was claimed during a COMMIT is given back if its handler may not begin`(_ way: End) async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(lease: .seconds(60)))
      let (haveFinished, mayStop, mayEnd) = (Latch(2), Promise<Void>(), Promise<Void>())
      let begun = Log<Int>()
      for number in 0..<2 { try queue.add(Task(number: number), on: db) }
      try co_scope { scope in
        scope.launch {
          try? co_scope { worker in
            worker.launch {
              try queue.work(concurrency: 2) { job in
                begun.add(job.payload.number)
                try job.finish { _ in }
                if job.payload.number < 2 { haveFinished.countDown() }
                try co_await(mayEnd)
              }
            }
            try co_await(mayStop)
            if way == .cancellation { worker.cancel() } else { worker.stop(within: .seconds(60)) }
          }
        }
        defer {
          mayStop.fulfill(())
          mayEnd.fulfill(())
        }
        try haveFinished.wait()
        let (third, _) = try queue.add(Task(number: 2), on: db)
        // It runs for a second at most, which may pass unseen.
        try eventually { try wasClaimed(third, db, schema) }
        if way != .handlersGoOn { mayStop.fulfill(()) }
        if way != .cancellation {
          try eventually { try queue.job(third)?.state == .available }
          #expect(try queue.job(third)?.attempt == 0)
          for _ in 0..<50 { #expect(try queue.job(third)?.state == .available) }
        }
        // Others may have it meanwhile.
        try beside {
          try queue.work(concurrency: 1) { job in try job.finish { _ in } }
        } _: {
          try eventually { try queue.job(third)?.state == .completed }
        }
        // A cancellation comes to them one after the other: the third may begin before its own, and is cancelled then.
        let attempt = try queue.job(third)?.attempt
        #expect(attempt == 1 || way == .cancellation && attempt == 2)
      }
      #expect(way == .cancellation || begun.all.sorted() == [0, 1])
      #expect(try queue.counts()[.completed] == 3)
    }
  }

  enum Reason: CaseIterable { case key, keyLimit, singleAttempt }

  @Test(arguments: Reason.allCases)
  func `no job is claimed during a COMMIT if that would use something up`(_ reason: Reason) async throws {
    try await withSchema { db, schema in
      var options = quick(lease: .seconds(60), attempts: reason == .singleAttempt ? 1 : 3)
      if reason == .keyLimit { options.keyLimit = WorkKeyLimit(concurrency: 4) }
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: options)
      let (hasFinished, mayEnd) = (Promise<Void>(), Promise<Void>())
      try queue.add(Task(number: 0), on: db, key: reason == .singleAttempt ? nil : "a")
      try beside {
        try queue.work(concurrency: 1) { job in
          try job.finish { _ in }
          hasFinished.fulfill(())
          try co_await(mayEnd)
        }
      } _: {
        try co_await(hasFinished)
        let (second, _) = try queue.add(Task(number: 1), on: db, key: reason == .singleAttempt ? nil : "b")
        for _ in 0..<50 { #expect(try queue.job(second)?.state == .available) }
        mayEnd.fulfill(())
        try eventually { try queue.job(second)?.state == .completed }
      }
    }
  }

  @Test func `a job that is lost before its coroutine begins gives its room back, once`() throws {
    let room = FairSemaphore(1)
    #expect(room.tryAcquire())
    let until = ContinuousClock.Instant.steady
    let job = RunningJob(1, fence: 1, until: until, room: room, isRoomEarly: false)
    try co_launch {
      let ran = Log<Int>()
      let coroutine = co_launch(start: .lazy) {
        defer { job.giveRoom() }
        guard job.begin() else { return }
        ran.add(1)
      }
      #expect(job.lose())
      job.runs(in: coroutine)
      try coroutine.join()
      #expect(ran.all.isEmpty)
    }.blockingWait()
    job.giveRoomEarly()
    job.giveRoom()
    #expect(room.tryAcquire())
    #expect(!room.tryAcquire())
  }

  @Test func `jobs of a cancelled worker become available at once, and the attempt does not count`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(lease: .seconds(60)))
      for number in 0..<5 { try queue.add(Task(number: number), on: db) }
      let begun = Latch(3)
      try beside {
        try queue.work(concurrency: 3) { _ in
          begun.countDown()
          try co_delay(.seconds(3_600))
        }
      } _: {
        try begun.wait()
      }
      // The worker waits for half a second for the answers. Nobody looks for leases that have ended any more.
      try eventually { try queue.counts()[.available] == 5 }
      #expect(try queue.jobs(.available).allSatisfy { $0.attempt == 0 && $0.errors.isEmpty })
    }
  }

  @Test func `a worker that is asked to stop claims no more, and lets handlers finish`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(lease: .seconds(60)))
      for number in 0..<5 { try queue.add(Task(number: number), on: db) }
      let begun = Latch(2)
      let mayEnd = Latch(1)
      try co_scope { scope in
        let worker = scope.launch {
          try queue.work(concurrency: 2) { _ in
            begun.countDown()
            try mayEnd.wait()
          }
        }
        try begun.wait()
        scope.stop(within: .seconds(60))
        mayEnd.countDown()
        try worker.join()
      }
      #expect(try queue.counts()[.completed] == 2)
      #expect(try queue.counts()[.available] == 3)
    }
  }

  @Test func `keys run one at a time, in the order of their numbers, across workers and failures`() async throws {
    try await withSchema(connections: 10) { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(attempts: 50))
      try db.run("create table \(identifier: schema).done (n bigserial, key text, job bigint)")
      // Transactions that add at once, and commit in any order.
      try co_scope { scope in
        for adder in 0..<6 {
          scope.launch {
            for number in 0..<10 {
              try queue.add(Task(number: adder * 10 + number), on: db, key: "key \(number % 3)")
            }
          }
        }
      }
      let busy = ThreadMutex<Set<Int>>([])
      let work: @Sendable () throws -> Void = {
        try queue.work(concurrency: 5) { job in
          let key = job.payload.number % 10 % 3
          #expect(busy.withLock { $0.insert(key).inserted })
          try co_yield()
          // Before the job's end: after it the next one may begin.
          let leave = { _ = busy.withLock { $0.remove(key) } }
          if Int.random(in: 0..<5) == 0 {
            leave()
            throw Flaky()
          }
          try job.finish { t in
            try t.run("insert into \(identifier: schema).done (key, job) values (\("key \(key)"), \(job.id))")
            leave()
          }
        }
      }
      try beside(work) {
        try beside(work) { try eventually { try queue.counts()[.completed] == 60 } }
      }
      let done = try db.all("select key, job from \(identifier: schema).done order by n", as: (String, Int64).self)
      #expect(done.count == 60)
      for key in 0..<3 {
        let jobs = done.filter { $0.0 == "key \(key)" }.map(\.1)
        #expect(jobs == jobs.sorted())
      }
    }
  }

  @Test func `two claims that have not seen each other do not run two jobs of one key`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      let ids = try (0..<2).map { try queue.add(Task(number: $0), on: db, key: "k").id }
      let both: SQL = "update \(identifier: schema).job set state = 'running' where id ="
      try db.run("\(both) \(ids[0])")
      #expect(state { _ = try db.run("\(both) \(ids[1])") } == "23505")
    }
  }

  @Test func `jobs that were kept for long enough are deleted, and zero deletes in finish`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      let (old, _) = try queue.add(Task(number: 1), on: db)
      let (young, _) = try queue.add(Task(number: 2), on: db)
      try db.run(
        """
        update \(identifier: schema).job set state = 'completed',
          ended_at = now() - case when id = \(old) then interval '25 h' else interval '23 h' end
        """
      )
      try beside {
        try queue.work { _ in }
      } _: {
        try eventually { try queue.job(old) == nil }
      }
      #expect(try queue.job(young) != nil)
      var options = quick()
      options.keepCompleted = .zero
      let brief = WorkQueue<Task>("brief", on: db, schema: schema, options: options)
      let ids = try (0..<2).map { try brief.add(Task(number: $0), on: db).id }
      try beside {
        try brief.work { job in if job.payload.number == 0 { try job.finish { _ in } } }
      } _: {
        try eventually { try ids.allSatisfy { try brief.job($0) == nil } }
      }
    }
  }
}
#endif
