import Coroutine
import Testing

@Suite("Locks and permits in a select", .timeLimit(.minutes(10)))
struct LockSelectTests {
  @Test func `a free lock is taken at once, and stays taken`() async throws {
    try await onSerialQueue {
      let (mutex, semaphore, lock) = (FairMutex(), FairSemaphore(3), FairReadWriteLock())
      try co_select { mutex.onLock {} }
      #expect(!mutex.tryLock())
      mutex.unlock()
      try co_select { semaphore.onAcquire(2) {} }
      #expect(semaphore.available == 1)
      semaphore.release(2)
      try co_select { lock.onReadLock {} }
      #expect(lock.tryLockRead())
      lock.unlockRead()
      lock.unlockRead()
      try co_select { lock.onWriteLock {} }
      #expect(!lock.tryLockRead())
      lock.unlockWrite()
      let answer = try co_select { mutex.onLock { 7 } }
      #expect(answer == 7)
      mutex.unlock()
    }
  }

  @Test func `a select is queued like other waiters`() async throws {
    let trace = try await onSerialQueue {
      let (mutex, row) = (FairMutex(), Queueing())
      try mutex.lock()
      try row.enqueue("a") { try mutex.withLock {} }
      try row.enqueue("select") {
        try co_select {
          mutex.onLock {}
          Promise<Int>().onAwait { _ in }
        }
        mutex.unlock()
      }
      try row.enqueue("b") { try mutex.withLock {} }
      mutex.unlock()
      try row.settle()
      return row.trace.all
    }
    #expect(trace == ["a", "select", "b"])
  }

  @Test func `a select waits for its number of permits`() async throws {
    let trace = try await onSerialQueue {
      let (semaphore, row) = (FairSemaphore(3), Queueing())
      try semaphore.acquire(3)
      try row.enqueue("two") { try co_select { semaphore.onAcquire(2) {} } }
      try row.enqueue("one") { try semaphore.acquire() }
      semaphore.release()
      try row.settle()
      #expect(row.trace.all.isEmpty)
      semaphore.release()
      try row.settle()
      #expect(row.trace.all == ["two"])
      semaphore.release()
      try row.settle()
      #expect(semaphore.available == 0)
      return row.trace.all
    }
    #expect(trace == ["two", "one"])
  }

  @Test func `an unselected case leaves nothing behind: an unlock hands over to the next waiter`() async throws {
    try await onSerialQueue {
      let (mutex, promise, row) = (FairMutex(), Promise<Int>(), Queueing())
      try mutex.lock()
      try row.enqueue("select") {
        try co_select {
          mutex.onLock { Issue.record("not free") }
          promise.onAwait { _ in }
        }
      }
      try row.enqueue("next") { try mutex.withLock {} }
      promise.fulfill(1)
      try row.settle()
      #expect(row.trace.all == ["select"])
      mutex.unlock()
      try row.settle()
      #expect(row.trace.all == ["select", "next"])
      #expect(mutex.tryLock())
    }
  }

  @Test(.inWorlds, arguments: ["another case", "a cancellation", "a timeout"])
  func `when a select for many permits leaves, waiters behind it get the available permits at once`(_ how: String)
    throws
  {
    let (semaphore, lock, promise, row) = (FairSemaphore(3), FairReadWriteLock(), Promise<Int>(), Queueing())
    try semaphore.acquire()
    try lock.lockRead()
    let timeout: Duration = how == "a timeout" ? .milliseconds(1) : .seconds(600)
    let select = try row.enqueue("select") {
      try co_select {
        semaphore.onAcquire(3) { Issue.record("not there") }
        lock.onWriteLock { Issue.record("not free") }
        promise.onAwait { _ in }
        SelectCase.onTimeout(timeout) {}
      }
    }
    let others = [
      try row.enqueue("permit") { try semaphore.acquire(2) },
      try row.enqueue("reader") { try lock.lockRead() },
    ]
    #expect(row.trace.all.isEmpty)
    switch how {
    case "another case": promise.fulfill(1)
    case "a cancellation": select.cancel()
    default: try co_delay(timeout)
    }
    for job in others { try job.join() }
    try settleWorld()
    let left = how == "a cancellation" ? "select: CancellationError" : "select"
    #expect(row.trace.all.sorted() == ["permit", "reader", left].sorted())
    #expect(worldTime == (how == "a timeout" ? .milliseconds(1) : .zero))
  }

  @Test func `cases of several locks take one of them`() async throws {
    try await onSerialQueue {
      let locks = (0..<4).map { _ in FairMutex() }
      for lock in locks { try lock.lock() }
      let job = co_launch {
        try co_select {
          for (number, lock) in locks.enumerated() { lock.onLock { number } }
        }
      }
      try co_yield()
      locks[2].unlock()
      locks[1].unlock()
      #expect(try job.join() == 2)
      #expect(!locks[2].tryLock())
      #expect(locks[1].tryLock())
    }
  }

  @Test func `of two cases of one semaphore in one select, one takes permits`() async throws {
    try await onSerialQueue {
      let semaphore = FairSemaphore(4)
      try semaphore.acquire(4)
      let job = co_launch {
        try co_select {
          semaphore.onAcquire(3) { 3 }
          semaphore.onAcquire(1) { 1 }
        }
      }
      try co_yield()
      semaphore.release(4)
      let taken = try job.join()
      #expect(semaphore.available == 4 - taken)
    }
  }

  @Test func `a request that can never be granted throws instead of waiting for ever`() async throws {
    try await onSerialQueue {
      let (mutex, semaphore, lock) = (FairMutex(), FairSemaphore(2), FairReadWriteLock())
      try mutex.lock()
      try lock.lockWrite()
      #expect(outcome { try co_select { mutex.onLock {} } } == "wouldDeadlock")
      #expect(outcome { try co_select { semaphore.onAcquire(3) {} } } == "wouldDeadlock")
      #expect(outcome { try co_select { lock.onReadLock {} } } == "wouldDeadlock")
      #expect(outcome { try co_select { lock.onWriteLock {} } } == "wouldDeadlock")
      #expect(semaphore.available == 2)
    }
  }

  @Test func `otherwise is selected if a lock is taken`() async throws {
    try await onSerialQueue {
      let (mutex, closed) = (FairMutex(), FairSemaphore(0))
      let holder = co_launch { try mutex.withLock { try waitForCancellation() } }
      try co_yield()
      let which = try co_select {
        mutex.onLock { "lock" }
        closed.onAcquire { "permit" }
        closed.onAcquire(0) { "no permit" }
        SelectCase.otherwise { "otherwise" }
      }
      #expect(which == "no permit")
      let other = try co_select {
        mutex.onLock { "lock" }
        closed.onAcquire { "permit" }
        SelectCase.otherwise { "otherwise" }
      }
      #expect(other == "otherwise")
      holder.cancel()
    }
  }

  @Test func `a negative number of permits ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = FairSemaphore(1).onAcquire(-1) {}
    }
    #expect(died?.said("A FairSemaphore cannot acquire -1 permits") == true)
  }
}
