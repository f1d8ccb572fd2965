import Coroutine
import Dispatch
import Testing

@Suite("FairMutex", .timeLimit(.minutes(10)))
struct FairMutexTests {
  @Test func `waiters get the lock first come, first served`() async throws {
    let trace = try await onSerialQueue {
      let (lock, row) = (FairMutex(), Queueing())
      try lock.lock()
      for label in ["a", "b", "c"] {
        try row.enqueue(label) {
          try lock.lock()
          try co_yield()
          lock.unlock()
        }
      }
      lock.unlock()
      try row.settle()
      return row.trace.all
    }
    #expect(trace == ["a", "b", "c"])
  }

  @Test func `a coroutine that unlocks and locks again at once goes to the back of the queue`() async throws {
    let trace = try await onSerialQueue {
      let (lock, row) = (FairMutex(), Queueing())
      try lock.lock()
      try row.enqueue("waiter") { try lock.withLock {} }
      lock.unlock()
      #expect(!lock.tryLock(), "handed over, though the waiter has not run yet")
      try lock.withLock { row.trace("unlocker") }
      try row.settle()
      return row.trace.all
    }
    #expect(trace == ["waiter", "unlocker"])
  }

  @Test func `locking again by the owner throws, and the lock stays usable`() async throws {
    try await onSerialQueue {
      let lock = FairMutex()
      try lock.withLock {
        #expect(outcome { try lock.lock() } == "wouldDeadlock")
        #expect(!lock.tryLock())
      }
      #expect(outcome { try lock.withLock { 1 } } == "1")
    }
  }

  @Test func `withLock unlocks when its body throws or is cancelled`() async throws {
    try await onSerialQueue {
      let lock = FairMutex()
      #expect(throws: Oops("body")) { try lock.withLock { throw Oops("body") } }
      let holder = co_launch { try lock.withLock { try waitForCancellation() } }
      try co_yield()
      #expect(!lock.tryLock())
      holder.cancel()
      #expect(outcome { try holder.join() } == "CancellationError")
      #expect(lock.tryLock())
      lock.unlock()
    }
  }

  @Test func `the lock belongs to the coroutine, on whatever queue it continues`() async throws {
    let other = taggedQueue("other")
    try await onSerialQueue {
      let lock = FairMutex()
      try lock.lock()
      try co_switch(to: other)
      lock.unlock()
      #expect(lock.tryLock())
      lock.unlock()
    }
  }

  @Test func `a critical section that suspends excludes other coroutines, on every core`() async throws {
    let lock = FairMutex()
    let cell = UnsafeCell()
    try await onCoroutine {
      try co_scope { scope in
        for _ in 0..<20 {
          scope.launch {
            for round in 0..<50 {
              try lock.withLock {
                let before = cell.count
                if round.isMultiple(of: 10) { try co_yield() }
                cell.increment()
                #expect(cell.count == before + 1)
              }
            }
          }
        }
      }
    }
    #expect(cell.count == 1_000)
  }

  @Test func `a waiting coroutine does not block its thread`() async throws {
    try await onSerialQueue {
      let (lock, row) = (FairMutex(), Queueing())
      try lock.lock()
      for number in 0..<100 { try row.enqueue("\(number)") { try lock.withLock {} } }
      #expect(row.trace.count == 0)
      lock.unlock()
      try row.settle()
      #expect(row.trace.count == 100)
    }
  }

  @Test func `outside a coroutine a thread may try, and then owns the lock`() async throws {
    let lock = FairMutex()
    #expect(outcome { try lock.lock() } == "notInCoroutine")
    #expect(outcome { try lock.withLock {} } == "notInCoroutine")
    try await onOwnThread {
      #expect(lock.tryLock())
      #expect(!lock.tryLock())
      lock.unlock()
      #expect(lock.tryLock())
      lock.unlock()
    }
  }

  @Test func `a thread that unlocks hands the lock over to a waiting coroutine`() async throws {
    let (lock, parked) = (FairMutex(), Gate())
    let queue = taggedQueue("waiter")
    let waiter = try await onOwnThread {
      #expect(lock.tryLock())
      let waiter = co_launch(on: queue) {
        parked.open()
        return try lock.withLock { "got it" }
      }
      // A block of the serial queue runs only when the coroutine has parked.
      try co_launch { try parked.pass() }.blockingWait()
      queue.sync {}
      lock.unlock()
      return waiter
    }
    #expect(try await waiter.value == "got it")
  }

  @Test func `a dump says that a coroutine waits for a lock`() async throws {
    let dump = try await onSerialQueue {
      let (lock, row) = (FairMutex(), Queueing())
      try lock.lock()
      try row.enqueue("stands in line") { try lock.withLock {} }
      defer { lock.unlock() }
      return dumpOfOwnQueue()
    }
    #expect(dump.contains("\"stands in line\" waiting for a lock"))
  }

  @Test func `unlocking another owner's lock ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try await onSerialQueue {
        let lock = FairMutex()
        let holder = co_launch { try lock.withLock { try waitForCancellation() } }
        try co_yield()
        lock.unlock()
        holder.cancel()
      }
    }
    #expect(died?.said("A FairMutex can be unlocked only by the coroutine") == true)
  }

  @Test func `unlocking a free lock ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { FairMutex().unlock() }
    #expect(died?.said("A FairMutex can be unlocked only by the coroutine") == true)
  }
}
