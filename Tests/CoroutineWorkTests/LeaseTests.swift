#if Postgres
import Coroutine
import CoroutinePostgres
import Testing

@testable import CoroutineWork

@Suite("Leases", .serialized, .timeLimit(.minutes(10)))
struct LeaseTests {
  private func withLeases<R: Sendable>(_ body: @escaping @Sendable (PostgresPool, String) throws -> R) async throws -> R
  {
    try await withPool { db in
      try Work.migrate(db)
      return try co_timeout(.seconds(500)) { try body(db, uniqueName("lease")) }
    }
  }

  @Test func `one coroutine at a time holds a lease, and fences grow`() async throws {
    try await withLeases { db, name in
      let holders = ThreadMutex(0)
      let fences = Log<Int64>()
      try co_scope { scope in
        for _ in 0..<5 {
          scope.launch {
            try db.lease(name, ttl: .seconds(30)) { lease in
              #expect(
                holders.withLock {
                  $0 += 1
                  return $0
                } == 1
              )
              fences.add(lease.fence)
              try co_yield()
              try lease.transaction { _ in }
              holders.withLock { $0 -= 1 }
            }
          }
        }
      }
      #expect(fences.all.count == 5)
      #expect(zip(fences.all, fences.all.dropFirst()).allSatisfy { $0 < $1 })
    }
  }

  @Test func `tryLease returns nil at once while somebody else holds the lease`() async throws {
    try await withLeases { db, name in
      let inner: Int?? = try db.tryLease(name) { _ in try db.tryLease(name) { _ in 1 } }
      #expect(inner == .some(nil))
      #expect(try db.tryLease(name) { _ in 2 } == 2)
    }
  }

  @Test func `a lease is extended while its body runs`() async throws {
    try await withLeases { db, name in
      let ends: SQL = "select ends::text from work.lease where name = \(name)"
      try db.lease(name, ttl: .seconds(20)) { lease in
        let first = try db.first(ends, as: String.self)
        try eventually { try db.first(ends, as: String.self) != first }
        // Also while a transaction of the holder has the row locked.
        try lease.transaction { t in
          let second = try t.first(ends, as: String.self)
          try eventually { try db.first(ends, as: String.self) != second }
        }
      }
    }
  }

  @Test func `a holder whose lease was taken is cancelled, and its transactions are refused`() async throws {
    try await withLeases { db, name in
      let log = Log<PostgresError.Kind?>()
      let lost = kind {
        try db.lease(name, ttl: .seconds(1)) { lease in
          // Shielded, or the loss would end it half-way.
          try co_shield {
            try db.run("update work.lease set ends = now() - interval '1 s' where name = \(name)")
            let taken = try db.tryLease(name, ttl: .seconds(30)) { next in
              #expect(next.fence > lease.fence)
              log.add(kind { try lease.transaction { _ in log.add(nil) } })
              try next.transaction { _ in }
              return true
            }
            #expect(taken == true)
          }
          try co_delay(.seconds(3_600))
        }
      }
      #expect(lost == .leaseLost)
      #expect(log.all == [.leaseLost])
    }
  }

  @Test func `nobody takes a lease while a transaction of its holder is open`() async throws {
    try await withLeases { db, name in
      try db.lease(name, ttl: .seconds(60)) { lease in
        try lease.transaction { t in
          try t.run("update work.lease set ends = now() - interval '1 s' where name = \(name)")
          // The other program does not wait, either.
          #expect(try db.tryLease(name) { _ in true } == nil)
          try t.run("update work.lease set ends = now() + interval '60 s' where name = \(name)")
        }
      }
    }
  }

  @Test func `a body that fails as an outage does runs once, and its error is thrown`() async throws {
    try await withLeases { db, name in
      var runs = 0
      let error = #expect(throws: PostgresError.self) {
        try db.lease(name) { _ in
          runs += 1
          try db.transaction { t in
            _ = try t.run("do $$ begin raise exception 'no' using errcode = '40001'; end $$")
          }
        }
      }
      #expect(error?.sqlState == .serializationFailure)
      #expect(runs == 1)
    }
  }

  @Test func `a waiter learns how long the holder has the lease, so that it need not look later`() async throws {
    try await withLeases { db, name in
      func left() throws -> Duration? {
        guard case .held(let left) = try Lease.take(name, holder: "h", ttl: .seconds(30), on: db) else { return nil }
        return left
      }
      #expect(try left() == nil)
      let time = try left()
      #expect(time.map { $0 > .zero && $0 <= .seconds(30) } == true)
      // Its end has come, and a transaction of its holder is open.
      try db.transaction { t in
        try t.run("update work.lease set ends = now() where name = \(name)")
        #expect(try left().map { $0 > .zero } == true)
      }
      try db.transaction { t in
        try t.run("select from work.lease where name = \(name) for update")
        #expect(try left() == .zero)
      }
      #expect(try left() == nil)
    }
  }

  @Test func `a cancelled holder gives its lease back`() async throws {
    try await withLeases { db, name in
      // It has half a second for that, which may pass on a busy machine: half of the holders are enough. After three
      // in a row no more are asked.
      var (attempts, successes, row) = (0, 0, 0)
      while attempts < 40, row < 3 || successes * 2 < attempts {
        let one = "\(name) \(attempts)"
        let begun = Latch(1)
        try co_scope { scope in
          let holder = scope.launch {
            try db.lease(one, ttl: .seconds(3_600)) { _ in
              begun.countDown()
              try co_delay(.seconds(3_600))
            }
          }
          try begun.wait()
          holder.cancel()
          _ = try? holder.join()
        }
        let isFree = try db.tryLease(one) { _ in true } == true
        attempts += 1
        (successes, row) = isFree ? (successes + 1, row + 1) : (successes, 0)
      }
      #expect(successes * 2 >= attempts, "\(successes) of \(attempts)")
    }
  }
}
#endif
