import CoroutineTesting
import Dispatch
import Glibc
import Testing

@testable import Coroutine

/// Bodies of blocking code that block in waits of the library: their threads do not count towards the limit meanwhile.
@Suite("Waits in blocking code", .timeLimit(.minutes(10)))
struct BlockingWaitTests {
  /// A way to block the thread until the pool has run another body.
  struct Route: Sendable, CustomTestStringConvertible {
    let testDescription: String
    let wait: @Sendable (BlockingPool) throws -> Int

    init(_ name: String, _ wait: @escaping @Sendable (BlockingPool) throws -> Int) {
      testDescription = name
      self.wait = wait
    }
  }

  static let routes = [
    Route("Job.blockingWait") { pool in try co_launch { try pool.run { 1 } }.blockingWait() },
    Route("Job.blockingWait of a lazy job") { pool in try co_launch(start: .lazy) { try pool.run { 1 } }.blockingWait()
    },
    Route("Promise.blockingWait") { pool in try co_launch { try pool.run { 1 } }.uncancelled.blockingWait() },
    Route("wait of a link") { pool in try co_launch { try pool.run { 0 } }.uncancelled.then { $0 + 1 }.blockingWait() },
    Route("a step of a generator") { pool in
      let steps = co_sequence { yield in try yield(waitForBody(pool)) }
      return steps.next() ?? 0
    },
    Route("the synchronous part of a Task") { pool in
      // Sound because the Task's first part, which is all of it, runs in the initializer.
      nonisolated(unsafe) var result = Result<Int, any Error>.failure(Oops("never"))
      Task.immediate { result = Result { try waitForBody(pool) } }
      return try result.get()
    },
    Route("a world that waits for a real thread") { pool in
      try World().run { try World.outside { try pool.run { 1 } } }
    },
  ]

  private static func waitForBody(_ pool: BlockingPool) throws -> Int {
    try co_launch { try pool.run { 1 } }.blockingWait()
  }

  @Test(arguments: routes) func `bodies that wait for others may take every thread of the pool`(_ route: Route)
    async throws
  {
    let watched = WatchedPool(limit: 2)
    // All of them wait at once: no first one ends before the last one has begun.
    let begun = DispatchGroup()
    for _ in 0..<6 { begun.enter() }
    let jobs = (0..<6).map { _ in
      co_launch {
        try watched.pool.run {
          begun.leave()
          return try route.wait(watched.pool)
        }
      }
    }
    for job in jobs { #expect(try await job.value == 1) }
    begun.wait()
    #expect(watched.pool.counts.waiting == 0)
  }

  @Test func `more bodies than the shared pool has threads may wait for bodies`() async throws {
    let count = CoroutineRuntime.blockingThreadLimit + 20
    let jobs = (0..<count).map { number in
      co_launch { try co_blocking { try co_launch { try co_blocking { number } }.blockingWait() } }
    }
    for (number, job) in jobs.enumerated() { #expect(try await job.value == number) }
  }

  @Test func `a thread that waits does not count, and may be one too many when it returns`() async throws {
    let watched = WatchedPool(limit: 2)
    let (gates, resumed, end) = ([Promise<Void>(), Promise<Void>()], Arrivals(), DispatchSemaphore(value: 0))
    // One after the other: work that is queued when a thread begins to wait makes the pool start one more.
    var waiters: [Job<Void>] = []
    for gate in gates {
      waiters.append(
        co_launch {
          try watched.pool.run {
            try gate.blockingWait()
            resumed.arrive()
            end.wait()
          }
        }
      )
      while watched.pool.counts.waiting < waiters.count { await Task.yield() }
    }
    watched.pool.expect(threads: 0, waiting: 2, idle: 0, queued: 0)

    // Both places are free. Of two more bodies one has ended when the waits end.
    let blocked = try await watched.block(2, running: 2, until: end)
    watched.pool.expect(threads: 2, waiting: 2, idle: 0, queued: 0)
    end.signal()
    try await watched.idled.wait(for: 1)
    watched.pool.expect(threads: 2, waiting: 2, idle: 1, queued: 0)

    // The first that returns takes the place of the idle thread; the second one is one too many.
    gates[0].fulfill(())
    try await resumed.wait(for: 1)
    try await watched.ended.wait(for: 1)
    watched.pool.expect(threads: 2, waiting: 1, idle: 0, queued: 0)
    gates[1].fulfill(())
    try await resumed.wait(for: 2)
    watched.pool.expect(threads: 3, waiting: 0, idle: 0, queued: 0)

    // A body that comes now waits for a free place, and not for the excess thread alone.
    let more = try await watched.submit(1) { _ in try watched.pool.run {} }
    watched.pool.expect(threads: 3, waiting: 0, idle: 0, queued: 1)
    end.signal()
    try await watched.ended.wait(for: 2)
    watched.pool.expect(threads: 2, waiting: 0, idle: 0, queued: 1)
    end.signal()
    try await more[0].value
    end.signal()
    for job in waiters + blocked.jobs { try await job.value }
  }

  @Test func `if all threads wait and no other one can be created, the queued bodies fail`() async throws {
    // The first thread starts, and no other one.
    let started = Locked(0)
    let pool = BlockingPool(limit: 1) { thread in
      started.withLock { $0 += 1 }
      return started.current == 1 ? thread.start() : EAGAIN
    }
    let seen = try await onCoroutine {
      outcome { try pool.run { try co_launch { try pool.run { 1 } }.blockingWait() } }
    }
    #expect(seen == "outOfStacks")
    pool.dismiss()
  }
}
