#if Postgres
import Coroutine
import CoroutinePostgres
import CoroutineWork
import Foundation
import Testing

/// Worker processes that are killed, stopped, and cut off from their server.
@Suite("Workers that die", .serialized, .timeLimit(.minutes(60)))
struct KillTests {
  /// Child processes that work the queue.
  private final class Workers: @unchecked Sendable {
    // Sound because one coroutine uses it.
    private let arguments: [String]
    private var children: [Process] = []
    /// Nothing is written to it; it ends with this process.
    private let input = Pipe()

    init(_ schema: String, mode: String = "mixed", address: String) { arguments = [address, schema, mode] }

    func start(_ count: Int) throws {
      for _ in 0..<count {
        let child = Process()
        child.executableURL = Bundle.main.executableURL?.deletingLastPathComponent().appendingPathComponent(
          "QueueWorker"
        )
        child.arguments = arguments
        // Not the pipe itself, which a child's start would close here.
        child.standardInput = input.fileHandleForReading
        child.standardError = FileHandle.nullDevice
        try child.run()
        children.append(child)
      }
    }
    var hasEnded: Bool { !children.contains(where: \.isRunning) }
    func random() -> pid_t { children.randomElement()!.processIdentifier }
    func kill(_ index: Int) {
      let child = children.remove(at: index)
      if child.isRunning { Glibc.kill(child.processIdentifier, SIGKILL) }
      child.waitUntilExit()
    }
    func killAll() { while !children.isEmpty { kill(0) } }
  }

  private func makeTables(_ db: PostgresPool, _ schema: String) throws {
    // No unique key: a second effect of a job is seen, not refused.
    try db.run(
      "create table \(identifier: schema).effect (n bigserial, job bigint, number int, key text, fence bigint)"
    )
  }

  /// Effects are jobs, none twice, and keys are in order.
  private func check(_ db: PostgresPool, _ schema: String, jobs: Int) throws {
    let (effects, distinct) = try #require(
      try db.first("select count(*), count(distinct job) from \(identifier: schema).effect", as: (Int, Int).self)
    )
    #expect(effects == jobs && distinct == jobs)
    // An effect that was accepted has the fence of the job's last claim.
    let others = try db.first(
      """
      select count(*) from \(identifier: schema).effect e join \(identifier: schema).job j on j.id = e.job
      where j.fence <> e.fence
      """,
      as: Int.self
    )
    #expect(others == 0)
    let disordered = try db.first(
      """
      select count(*) from (
        select job < lag(job) over (partition by key order by n) as is_late from \(identifier: schema).effect
        where key is not null) e where is_late
      """,
      as: Int.self
    )
    #expect(disordered == 0)
  }

  @Test func `workers are killed at random, and effects are jobs, each once and in the order of its key`() async throws
  {
    let environment = ProcessInfo.processInfo.environment
    let kills = environment["CO_WORK_KILLS"].flatMap { Int($0) } ?? 12
    let count = kills * 50
    let address = try Cluster.shared.get().address
    try await withSchema(limit: .seconds(600 + 2 * kills)) { db, schema in
      try makeTables(db, schema)
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(attempts: 1_000))
      let workers = Workers(schema, address: address)
      defer { workers.killAll() }
      try workers.start(3)
      try co_scope { scope in
        scope.launch {
          for number in 0..<count {
            try queue.add(Task(number: number), on: db, key: number % 2 == 0 ? nil : "\(number % 40)")
          }
        }
        for _ in 0..<kills {
          // Kills come while jobs run: after some effects more.
          let before = try db.first("select count(*) from \(identifier: schema).effect", as: Int.self)!
          let more = Int.random(in: 1...20)
          try eventually {
            let now = try db.first("select count(*) from \(identifier: schema).effect", as: Int.self)!
            return now >= min(before + more, count)
          }
          workers.kill(Int.random(in: 0..<3))
          try workers.start(1)
        }
      }
      try eventually { try queue.counts()[.completed] == count }
      try check(db, schema, jobs: count)
    }
  }

  @Test func `a worker that is stopped for longer than its lease does no harm when it continues`() async throws {
    let address = try Cluster.shared.get().address
    try await withSchema { db, schema in
      try makeTables(db, schema)
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(attempts: 1_000))
      let workers = Workers(schema, address: address)
      defer { workers.killAll() }
      try workers.start(2)
      var count = 0
      func add() throws {
        let new = (count..<count + 2_000).map { Task(number: $0) }
        try db.transaction { t in try queue.enqueue(all: new, in: t) }
        count += new.count
      }
      try add()
      let stopped = workers.random()
      let held: SQL = """
        select count(*) from \(identifier: schema).job where state = 'running' and worker like \("% \(stopped) %")
        """
      func countHeld() throws -> Int { try db.first(held, as: Int.self)! }
      // At a moment at which it holds jobs.
      repeat {
        kill(stopped, SIGCONT)
        try eventually {
          // All may have ended meanwhile.
          if try queue.counts()[.completed] == count { try add() }
          return try countHeld() > 0
        }
        kill(stopped, SIGSTOP)
      } while try countHeld() == 0
      // Its leases end, and the other worker takes the jobs.
      try eventually { try countHeld() == 0 }
      kill(stopped, SIGCONT)
      try eventually { try queue.counts()[.completed] == count }
      try check(db, schema, jobs: count)
    }
  }

  @Test func `a job that kills its worker ends after its attempts`() async throws {
    let address = try Cluster.shared.get().address
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(attempts: 2))
      let (id, _) = try queue.add(Task(number: 1), on: db)
      let workers = Workers(schema, mode: "poison", address: address)
      defer { workers.killAll() }
      // A worker has both attempts if the first one was lost before it began: on a busy machine its second may pass.
      var last = 0
      while last < 2 {
        try workers.start(1)
        try eventually { try workers.hasEnded || queue.job(id)?.state == .discarded }
        let attempt = try queue.job(id)?.attempt ?? 0
        #expect(attempt > last)
        last = max(attempt, last + 1)
        workers.killAll()
      }
      // Any worker gives it up.
      try beside {
        try queue.work { _ in Issue.record("a third attempt") }
      } _: {
        try eventually { try queue.job(id)?.state == .discarded }
      }
      #expect(try queue.job(id)?.errors.count == 2)
    }
  }

  @Test func `a worker and a schedule that are asked to stop while the server is away return`() async throws {
    let cluster = try Cluster()
    try await withPool(on: cluster) { db in
      try Work.migrate(db)
      let queue = WorkQueue<Task>("q", on: db, options: quick())
      let log = Log<String>()
      try co_scope { scope in
        let working = scope.launch {
          try queue.work(
            onEvent: { if case .disconnected = $0 { log.add("disconnected") } },
            { _ in log.add("a job") }
          )
        }
        try eventually { try queue.counts()[.available] == 0 && db.statistics.idle > 0 }
        try co_blocking { cluster.stop("immediate") }
        try eventually { log.all.contains("disconnected") }
        let scheduling = scope.launch { try queue.schedule("s", .every(.seconds(3_600))) { _ in Task(number: 1) } }
        // It has begun to ask the server, which is not there.
        try eventually { db.reserve.statistics.connecting > 0 }
        scope.stop(within: .seconds(600))
        _ = try (working.join(), scheduling.join())
      }
      try co_blocking { try cluster.start() }
      try db.transaction(retries: 20) { t in try queue.enqueue(Task(number: 2), in: t) }
      #expect(try queue.counts()[.available] == 1)
      #expect(!log.all.contains("a job"))
    }
  }

  @Test func `workers survive a server that stops and starts, and tell so`() async throws {
    let cluster = try Cluster()
    try await withPool(on: cluster) { db in
      try Work.migrate(db)
      try db.run("create table effect (job bigint)")
      let queue = WorkQueue<Task>("q", on: db, options: quick(lease: .seconds(3), attempts: 1_000))
      let each = 400
      let log = Log<String>()
      try beside {
        try queue.work(
          concurrency: 6,
          onEvent: { event in
            switch event {
            case .disconnected: log.add("disconnected")
            case .reconnected: log.add("reconnected")
            default: break
            }
          },
          { job in
            try co_delay(.milliseconds(2))
            try job.finish { t in try t.run("insert into effect values (\(job.id))") }
          }
        )
      } _: {
        for _ in 0..<2 {
          let before = try persistently { try queue.counts()[.completed]! }
          // More for each outage, or all may be done before the second one.
          try persistently {
            try db.transaction { t in try queue.enqueue(all: (0..<each).map { Task(number: $0) }, in: t) }
          }
          try eventually { try persistently { try queue.counts()[.completed]! } > before }
          try co_blocking {
            cluster.stop("immediate")
            try cluster.start()
          }
        }
        try eventually { try persistently { try queue.counts()[.completed]! } == 2 * each }
        // It may be told behind the last commit.
        try eventually { log.all.last == "reconnected" }
      }
      #expect(try db.first("select count(*) from effect", as: Int.self) == 2 * each)
      #expect(try db.first("select count(distinct job) from effect", as: Int.self) == 2 * each)
      #expect(log.all.first == "disconnected")
    }
  }

  /// The test's own statements lose their connections, too.
  private func persistently<R>(_ body: () throws -> R) throws -> R {
    while true {
      do { return try body() } catch let error as PostgresError
        where error.kind == .lost || error.kind == .cannotConnect
      {
        try co_delay(.milliseconds(10))
      }
    }
  }
}
#endif
