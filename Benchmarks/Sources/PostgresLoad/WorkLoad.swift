import Coroutine
import CoroutinePostgres
import CoroutineWork
import Harness

/// Jobs: adding them, and working them.
struct WorkLoad: Sendable {
  private let queue: WorkQueue<Int>
  private let db: PostgresPool

  init(_ address: String, wakesUp: Bool) throws {
    var options = PostgresPool.Options()
    options.connections = 0...12
    db = try PostgresPool(address, options: options)
    try Work.migrate(db)
    try db.run("truncate work.job")
    var work = WorkOptions()
    work.usesNotifications = wakesUp
    queue = WorkQueue("bench", on: db, options: work)
  }

  /// Each client adds a job in a transaction of its own; a worker listens, or polls, and the queue is paused.
  func enqueue(clients: Int, _ limit: Limit) throws {
    try queue.pause()
    defer { _ = try? queue.resume() }
    try co_scope { scope in
      let worker = scope.launch { try queue.work { _ in } }
      defer { worker.cancel() }
      try load(clients: clients, limit) { number, loop in
        try loop { try db.transaction { t in _ = try queue.enqueue(number, in: t) } }
      }
    }
  }

  /// Works so many jobs that are there, each finished in a transaction of its own; 8 at a time.
  func work(jobs: Int) throws {
    try db.transaction { t in try queue.enqueue(all: Array(0..<jobs), in: t) }
    try db.run("vacuum analyze work.job")
    let done = ThreadMutex(0)
    let end = Promise<Void>()
    let start = (wall: Clock.wall.now, processor: Clock.processor.now)
    try co_scope { scope in
      let worker = scope.launch {
        try queue.work(concurrency: 8) { job in
          try job.finish { _ in }
          let count = done.withLock { done in
            done += 1
            return done
          }
          if count == jobs { end.fulfill(()) }
        }
      }
      defer { worker.cancel() }
      try co_await(end)
      report("tps", Double(jobs) / (Double(Clock.wall.now - start.wall) / 1e9))
      report("us", Double(Clock.processor.now - start.processor) / 1e3 / Double(jobs))
    }
  }
}
