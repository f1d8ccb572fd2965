import Dispatch
import Testing

@testable import Coroutine

/// A pool whose threads' ends and idling can be waited for.
final class WatchedPool: Sendable {
  let pool: BlockingPool
  let idled = Arrivals()
  let ended = Arrivals()

  init(
    limit: Int,
    idleTimeout: DispatchTimeInterval = .never,
    start: @escaping @Sendable (BlockingThread) -> Int32 = { $0.start() }
  ) {
    let (idled, ended) = (self.idled, self.ended)
    pool = BlockingPool(
      limit: limit,
      idleTimeout: idleTimeout,
      start: start,
      observe: { event in
        switch event {
        case .idled: idled.arrive()
        case .ended: ended.arrive()
        }
      }
    )
  }

  deinit { pool.dismiss() }

  /// Gives the pool `count` bodies that block until `end` is signalled, and waits until `running` of them run.
  func block(_ count: Int, running: Int, until end: DispatchSemaphore) async throws -> Blocked {
    let started = Arrivals()
    let jobs = try await submit(count) { [pool] _ in
      try pool.run {
        started.arrive()
        end.wait()
      }
    }
    try await started.wait(for: running)
    return Blocked(jobs: jobs, started: started)
  }

  /// Launches coroutines that each call `run`, in order; returns after all calls.
  func submit(_ count: Int, _ run: @escaping @Sendable (Int) throws -> Void) async throws -> [Job<Void>] {
    try await onSerialQueue {
      let jobs = (0..<count).map { index in co_launch { try run(index) } }
      try co_yield()
      return jobs
    }
  }
}

struct Blocked {
  let jobs: [Job<Void>]
  let started: Arrivals

  func end(by end: DispatchSemaphore) async throws {
    for _ in jobs { end.signal() }
    for job in jobs { try await job.value }
  }
}

extension BlockingPool {
  func expect(
    threads: Int,
    waiting: Int = 0,
    idle: Int,
    queued: Int,
    _ place: SourceLocation = #_sourceLocation
  ) {
    let counts = counts
    #expect(counts.threads == threads, "threads", sourceLocation: place)
    #expect(counts.waiting == waiting, "waiting", sourceLocation: place)
    #expect(counts.idle == idle, "idle", sourceLocation: place)
    #expect(counts.queued == queued, "queued", sourceLocation: place)
  }

  /// Ends the idle threads, as their timeout would.
  func dismiss() { setLimit(1) }
}
