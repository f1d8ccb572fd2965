import Coroutine
import Testing

@Suite("FairSemaphore", .timeLimit(.minutes(10)))
struct FairSemaphoreTests {
  @Test func `permits are acquired and released`() async throws {
    try await onSerialQueue {
      let semaphore = FairSemaphore(3)
      try semaphore.acquire(2)
      #expect(semaphore.available == 1)
      #expect(!semaphore.tryAcquire(2))
      #expect(semaphore.tryAcquire())
      #expect(semaphore.available == 0)
      semaphore.release(3)
      #expect(semaphore.available == 3)
    }
  }

  @Test func `no more coroutines run at once than there are permits, on every core`() async throws {
    let semaphore = FairSemaphore(3)
    let inside = Locked((now: 0, most: 0))
    try await onCoroutine {
      try co_scope { scope in
        for _ in 0..<20 {
          scope.launch {
            for _ in 0..<20 {
              try semaphore.acquire()
              inside.withLock {
                $0.now += 1
                $0.most = max($0.most, $0.now)
              }
              // The first ones stay until there are three.
              repeat { try co_yield() } while inside.withLock { $0.most < 3 }
              inside.withLock { $0.now -= 1 }
              semaphore.release()
            }
          }
        }
      }
    }
    #expect(inside.withLock { $0.most } == 3)
    #expect(semaphore.available == 3)
  }

  @Test func `a coroutine that wants many permits is not overtaken by those that want one`() async throws {
    let trace = try await onSerialQueue {
      let (semaphore, row) = (FairSemaphore(3), Queueing())
      try semaphore.acquire(2)
      try row.enqueue("many") { try semaphore.acquire(3) }
      try row.enqueue("one") { try semaphore.acquire(1) }
      #expect(!semaphore.tryAcquire(), "one is there, but somebody waits")
      #expect(semaphore.available == 1)
      semaphore.release()
      try row.settle()
      #expect(row.trace.all.isEmpty)
      semaphore.release()
      try row.settle()
      #expect(row.trace.all == ["many"])
      semaphore.release(3)
      try row.settle()
      return row.trace.all
    }
    #expect(trace == ["many", "one"])
  }

  @Test func `one release serves as many as it can, in order`() async throws {
    let trace = try await onSerialQueue {
      let (semaphore, row) = (FairSemaphore(6), Queueing())
      try semaphore.acquire(6)
      for (label, count) in [("a", 1), ("b", 2), ("c", 4), ("d", 1)] {
        try row.enqueue(label) { try semaphore.acquire(count) }
      }
      semaphore.release(6)
      try row.settle()
      #expect(semaphore.available == 3)
      return row.trace.all
    }
    #expect(trace == ["a", "b"], "c wants 4 of 3, and d stands behind it")
  }

  @Test func `when the first waiter is cancelled, those behind it get the available permits at once`() async throws {
    let trace = try await onSerialQueue {
      let (semaphore, row) = (FairSemaphore(3), Queueing())
      try semaphore.acquire(1)
      let many = try row.enqueue("many") { try semaphore.acquire(3) }
      try row.enqueue("one") { try semaphore.acquire() }
      try row.enqueue("another") { try semaphore.acquire() }
      many.cancel()
      try row.settle()
      #expect(semaphore.available == 0)
      return row.trace.all
    }
    #expect(trace == ["many: CancellationError", "one", "another"])
  }

  @Test func `acquiring no permits never waits, even if other coroutines wait`() async throws {
    try await onSerialQueue {
      let (semaphore, row) = (FairSemaphore(1), Queueing())
      try semaphore.acquire()
      try row.enqueue("waiter") { try semaphore.acquire() }
      try semaphore.acquire(0)
      #expect(semaphore.tryAcquire(0))
      semaphore.release(0)
      semaphore.release()
      try row.settle()
      #expect(row.trace.all == ["waiter"])
    }
  }

  @Test func `acquiring more than the limit throws instead of waiting for ever, and delays no other waiter`()
    async throws
  {
    try await onSerialQueue {
      let semaphore = FairSemaphore(2)
      #expect(outcome { try semaphore.acquire(3) } == "wouldDeadlock")
      #expect(!semaphore.tryAcquire(3))
      try semaphore.acquire(2)
      #expect(outcome { try semaphore.acquire(3) } == "wouldDeadlock")
      semaphore.release(2)
    }
  }

  @Test func `a semaphore without permits never lets a coroutine continue`() async throws {
    try await onSerialQueue {
      let (semaphore, row) = (FairSemaphore(0), Queueing())
      #expect(!semaphore.tryAcquire())
      #expect(semaphore.available == 0)
      let job = try row.enqueue("waiter") { try semaphore.acquire() }
      #expect(row.trace.all.isEmpty)
      job.cancel()
      try row.settle()
      #expect(row.trace.all == ["waiter: CancellationError"])
    }
  }

  @Test func `a thread may try and release`() async throws {
    let semaphore = FairSemaphore(1)
    #expect(outcome { try semaphore.acquire() } == "notInCoroutine")
    #expect(semaphore.tryAcquire())
    #expect(!semaphore.tryAcquire())
    let waiter = co_launch { try semaphore.acquire() }
    semaphore.release()
    try await waiter.value
    #expect(semaphore.available == 0)
  }

  @Test func `a dump says that a coroutine waits for permits`() async throws {
    let dump = try await onSerialQueue {
      let (semaphore, row) = (FairSemaphore(1), Queueing())
      try semaphore.acquire()
      try row.enqueue("out of permits") { try semaphore.acquire() }
      defer { semaphore.release() }
      return dumpOfOwnQueue()
    }
    #expect(dump.contains("\"out of permits\" waiting for permits"))
  }

  // MARK: signalling

  @Test func `a semaphore that starts without permits and has no limit signals, from any thread`() async throws {
    let arrived = FairSemaphore(0, limit: .unbounded)
    let woken = Locked(0)
    let waiters = (0..<100).map { _ in
      co_launch {
        try arrived.acquire()
        woken.withLock { $0 += 1 }
      }
    }
    for _ in 0..<4 { try await onOwnThread { for _ in 0..<25 { arrived.release() } } }
    for waiter in waiters { try await waiter.value }
    #expect(woken.withLock { $0 } == 100)
    #expect(arrived.available == 0)
  }

  @Test func `signals before the first wait are counted`() async throws {
    let semaphore = FairSemaphore(0, limit: .unbounded)
    semaphore.release()
    semaphore.release(2)
    #expect(semaphore.available == 3)
    try await onSerialQueue {
      try semaphore.acquire(2)
      #expect(semaphore.tryAcquire())
      #expect(!semaphore.tryAcquire())
      let isTaken = try co_select {
        semaphore.onAcquire { true }
          .otherwise { false }
      }
      #expect(!isTaken)
    }
  }

  @Test func `without a limit many permits can be waited for`() async throws {
    try await onSerialQueue {
      let (semaphore, row) = (FairSemaphore(1, limit: .unbounded), Queueing())
      try row.enqueue("five") { try semaphore.acquire(5) }
      for _ in 0..<3 { semaphore.release() }
      try row.settle()
      #expect(row.trace.all.isEmpty)
      semaphore.release()
      try row.settle()
      #expect(row.trace.all == ["five"])
    }
  }

  @Test func `a limit above the initial number of permits is enforced`() async throws {
    try await onSerialQueue {
      let semaphore = FairSemaphore(1, limit: .permits(3))
      semaphore.release(2)
      #expect(semaphore.available == 3)
      #expect(outcome { try semaphore.acquire(4) } == "wouldDeadlock")
      try semaphore.acquire(3)
    }
  }

  @Test func `releasing beyond the limit ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let semaphore = FairSemaphore(0, limit: .permits(2))
      semaphore.release(2)
      semaphore.release()
    }
    #expect(died?.said("A FairSemaphore with a limit of 2 permits got 1 released") == true)
  }

  @Test func `more permits than can be counted end the process instead of wrapping around`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let semaphore = FairSemaphore(0, limit: .unbounded)
      semaphore.release(.max / 2)
      #expect(semaphore.available == .max / 2)
      semaphore.release()
    }
    #expect(died?.said("An unbounded FairSemaphore got 1 released, beyond Int.max / 2 permits") == true)
    #expect(died?.said("limit: .unbounded") == false)
  }

  @Test func `a limit below the initial number of permits ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = FairSemaphore(2, limit: .permits(1))
    }
    #expect(died?.said("A FairSemaphore cannot have 2 permits and a limit of 1") == true)
  }

  @Test func `a negative number of permits ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { _ = FairSemaphore(-1) }
    #expect(died?.said("A FairSemaphore cannot have -1 permits") == true)
  }

  @Test func `acquiring a negative number ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try await onCoroutine { try FairSemaphore(1).acquire(-1) }
    }
    #expect(died?.said("A FairSemaphore cannot acquire -1 permits") == true)
  }

  @Test func `trying for a negative number ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = FairSemaphore(1).tryAcquire(-2)
    }
    #expect(died?.said("A FairSemaphore cannot acquire -2 permits") == true)
  }

  @Test func `releasing a negative number ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      FairSemaphore(1).release(-1)
    }
    #expect(died?.said("A FairSemaphore cannot release -1 permits") == true)
  }

  @Test func `releasing more than was acquired ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let semaphore = FairSemaphore(2)
      #expect(semaphore.tryAcquire())
      semaphore.release(2)
    }
    #expect(died?.said("release what was acquired, once") == true)
  }

  @Test func `releasing more than was acquired ends the process also while others wait`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try await onSerialQueue {
        let (semaphore, row) = (FairSemaphore(2), Queueing())
        try semaphore.acquire(1)
        try row.enqueue("waiter") { try semaphore.acquire(2) }
        semaphore.release(2)
      }
    }
    #expect(died?.said("release what was acquired, once") == true)
  }

  @Test func `a waiter that was cancelled waits no more, even before it has run`() async throws {
    try await onSerialQueue {
      let (semaphore, row) = (FairSemaphore(3), Queueing())
      try semaphore.acquire(1)
      let waiter = try row.enqueue("three") { try semaphore.acquire(3) }
      #expect(!semaphore.tryAcquire(), "a coroutine waits")
      waiter.cancel()
      let taken = (0..<3).count { _ in semaphore.tryAcquire() }
      #expect(taken == 2)
      try row.settle()
      semaphore.release(1 + taken)
      #expect(semaphore.available == 3)
      #expect(row.trace.all == ["three: CancellationError"])
    }
  }

  @Test func `those behind a cancelled waiter come before a try`() async throws {
    try await onSerialQueue {
      let (semaphore, row) = (FairSemaphore(3), Queueing())
      try semaphore.acquire(1)
      let waiter = try row.enqueue("three") { try semaphore.acquire(3) }
      try row.enqueue("two") { try semaphore.acquire(2) }
      waiter.cancel()
      #expect(!semaphore.tryAcquire())
      try row.settle()
      #expect(row.trace.all.sorted() == ["three: CancellationError", "two"])
      #expect(semaphore.available == 0)
    }
  }
}
