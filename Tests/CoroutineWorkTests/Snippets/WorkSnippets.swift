#if Postgres
// The code of the article WorkThatSurvivesTheProcess.md.
import Coroutine
import CoroutinePostgres
import CoroutineTesting
import CoroutineWork
import Foundation
import Testing

struct Welcome: Codable, Sendable { var order: String }

func place(_ order: String, _ db: PostgresPool, _ mails: WorkQueue<Welcome>) throws {
  try db.transaction(retries: 3) { t in
    try t.run("insert into orders (id) values (\(order))")
    try mails.enqueue(Welcome(order: order), in: t, unique: order)
  }
}

func sendMails(_ mails: WorkQueue<Welcome>, _ send: @escaping @Sendable (Welcome, Int64) throws -> Void) throws {
  try mails.work(concurrency: 64) { job in
    // At least once: the receiver knows the key.
    try send(job.payload, job.id)
    // Once.
    try job.finish { t in _ = try t.run("update orders set mailed = now() where id = \(job.payload.order)") }
  }
}

struct Booking: Codable, Sendable { var account: String, cents: Int }

func book(_ cents: Int, to account: String, _ bookings: WorkQueue<Booking>, in t: PostgresTransaction) throws {
  try bookings.enqueue(Booking(account: account, cents: cents), in: t, key: account)
}

func handle(_ bookings: WorkQueue<Booking>) throws {
  try bookings.work { job in
    try job.finish { t in
      _ = try t.run(
        """
        insert into balance (account, cents) values (\(job.payload.account), \(job.payload.cents))
        on conflict (account) do update set cents = balance.cents + excluded.cents
        """
      )
    }
  }
}

func deliveries(_ db: PostgresPool) -> WorkQueue<Booking> {
  var options = WorkOptions()
  options.keyLimit = WorkKeyLimit(concurrency: 4, count: 10, per: .seconds(1))
  return WorkQueue("deliveries", on: db, options: options)
}

func start(_ customer: String, _ db: PostgresPool, _ mails: WorkQueue<Welcome>, _ bills: WorkQueue<Booking>) throws {
  let bill = Booking(account: customer, cents: 500)
  try Work.enqueue(
    [mails.draft(Welcome(order: customer), unique: customer), bills.draft(bill, key: customer)],
    on: db
  )
}

func bill(_ bills: WorkQueue<Booking>, _ charge: @escaping @Sendable (Booking, Int64) throws -> Void) throws {
  try bills.work(
    onDiscard: { job, error, t in
      try t.run("insert into unpaid (account, reason) values (\(job.payload.account), \("\(error)"))")
    },
    { job in
      // Throws if another worker has the job by now: nobody is charged by two workers at once.
      try job.renew()
      try charge(job.payload, job.id)
    }
  )
}

func reportNightly(_ db: PostgresPool, _ reports: WorkQueue<Date>) throws {
  try reports.schedule("nightly", .cron("30 2 * * *", in: "Europe/Berlin")) { tick in tick }
}

func leadUntilCancelled(_ db: PostgresPool, _ step: (PostgresTransaction) throws -> Void) throws {
  while true {
    do {
      try db.lease("leader") { lease in
        while true {
          try lease.transaction(step)
          try co_delay(.seconds(1))
        }
      }
    } catch let error as PostgresError where error.kind == .leaseLost {
      // Another program holds it by now.
    }
  }
}

func mailsAreMarkedOnce(in world: World) throws {
  let memory = WorkMemory()
  for host in ["a", "b"] {
    world.network.host(host) {
      let mails = WorkQueue<Welcome>("mails", on: memory.pool())
      try sendMails(mails) { _, _ in try co_delay(.seconds(5)) }
    }
  }
  let mails = WorkQueue<Welcome>("mails", on: memory.pool())
  try Work.enqueue([mails.draft(Welcome(order: "7"))], on: memory.pool())
  try world.advance(by: .seconds(3))
  world.network.crash("a")
  // Longer than the lease of a job that has died with its host.
  try world.advance(by: .seconds(60))
  #expect(memory.committed.count == 1)
}

@Test func `the world of the article marks its mail once`() throws {
  let world = World()
  try world.run { try mailsAreMarkedOnce(in: world) }
}
#endif
