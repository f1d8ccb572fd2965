import Coroutine
import Testing

@Suite("FairSemaphore", .timeLimit(.minutes(1)))
struct FairSemaphoreTests {
  @Test func `permits are taken and given back`() async throws {
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

  @Test func `no more coroutines get in than there are permits, on every core`() async throws {
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
              try co_yield()
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

  @Test func `one that wants many is not overtaken by those that want one`() async throws {
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

  @Test func `when the one in front is cancelled, those behind it get what is there at once`() async throws {
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

  @Test func `none is taken at once, also when others wait`() async throws {
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

  @Test func `to ask for more than there are throws instead of waiting for ever, and holds up nobody`() async throws {
    try await onSerialQueue {
      let semaphore = FairSemaphore(2)
      #expect(outcome { try semaphore.acquire(3) } == "wouldDeadlock")
      #expect(!semaphore.tryAcquire(3))
      try semaphore.acquire(2)
      #expect(outcome { try semaphore.acquire(3) } == "wouldDeadlock")
      semaphore.release(2)
    }
  }

  @Test func `a semaphore without permits lets nobody through`() async throws {
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
      return CoroutineRuntime.dump()
    }
    #expect(dump.contains("\"out of permits\" waiting for permits"))
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
}
