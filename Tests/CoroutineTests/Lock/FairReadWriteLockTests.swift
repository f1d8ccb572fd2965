import Coroutine
import Testing

@Suite("FairReadWriteLock", .timeLimit(.minutes(10)))
struct FairReadWriteLockTests {
  @Test func `readers share the lock, a writer has it alone`() async throws {
    try await onSerialQueue {
      let lock = FairReadWriteLock()
      try lock.lockRead()
      #expect(lock.tryLockRead())
      #expect(!lock.tryLockWrite())
      lock.unlockRead()
      lock.unlockRead()
      #expect(lock.tryLockWrite())
      #expect(!lock.tryLockRead())
      #expect(!lock.tryLockWrite())
      lock.unlockWrite()
      #expect(try lock.withReadLock { 1 } + lock.withWriteLock { 2 } == 3)
      #expect(lock.tryLockWrite())
      lock.unlockWrite()
    }
  }

  @Test func `a reader behind a waiting writer waits, so that readers cannot keep writers out`() async throws {
    let trace = try await onSerialQueue {
      let (lock, row) = (FairReadWriteLock(), Queueing())
      try lock.lockRead()
      try row.enqueue("writer") { try lock.withWriteLock { try co_yield() } }
      try row.enqueue("reader") { try lock.withReadLock {} }
      #expect(!lock.tryLockRead())
      lock.unlockRead()
      try row.settle()
      return row.trace.all
    }
    #expect(trace == ["writer", "reader"])
  }

  @Test func `all readers up to the next writer get the lock together, and no writer is overtaken by a later one`()
    async throws
  {
    let trace = try await onSerialQueue {
      let (lock, row, gate) = (FairReadWriteLock(), Queueing(), Gate())
      try lock.lockWrite()
      for label in ["r1", "r2"] {
        try row.enqueue("\(label) out") {
          try lock.withReadLock {
            row.trace(label)
            try gate.pass()
          }
        }
      }
      for label in ["w1", "w2"] { try row.enqueue(label) { try lock.withWriteLock { try co_yield() } } }
      try row.enqueue("r3") { try lock.withReadLock {} }
      lock.unlockWrite()
      try row.settle()
      #expect(row.trace.all == ["r1", "r2"])
      gate.open()
      try row.settle()
      return row.trace.all
    }
    #expect(trace == ["r1", "r2", "r1 out", "r2 out", "w1", "w2", "r3"])
  }

  @Test func `readers behind a cancelled writer join the current readers`() async throws {
    let trace = try await onSerialQueue {
      let (lock, row) = (FairReadWriteLock(), Queueing())
      try lock.lockRead()
      let writer = try row.enqueue("writer") { try lock.lockWrite() }
      for label in ["r1", "r2"] { try row.enqueue(label) { try lock.withReadLock {} } }
      writer.cancel()
      try row.settle()
      #expect(!lock.tryLockWrite())
      lock.unlockRead()
      #expect(lock.tryLockWrite())
      return row.trace.all
    }
    #expect(trace == ["writer: CancellationError", "r1", "r2"])
  }

  @Test func `a writer that locks again gets wouldDeadlock, and keeps the lock`() async throws {
    try await onSerialQueue {
      let lock = FairReadWriteLock()
      try lock.withWriteLock {
        #expect(outcome { try lock.lockWrite() } == "wouldDeadlock")
        #expect(outcome { try lock.lockRead() } == "wouldDeadlock")
        #expect(!lock.tryLockRead())
      }
      #expect(lock.tryLockWrite())
    }
  }

  @Test func `outside a coroutine a thread may try, and then owns the lock`() async throws {
    let lock = FairReadWriteLock()
    #expect(outcome { try lock.lockRead() } == "notInCoroutine")
    #expect(outcome { try lock.lockWrite() } == "notInCoroutine")
    try await onOwnThread {
      #expect(lock.tryLockWrite())
      lock.unlockWrite()
      #expect(lock.tryLockRead())
      lock.unlockRead()
    }
  }

  @Test func `unlocking for reading without a reader ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      FairReadWriteLock().unlockRead()
    }
    #expect(died?.said("although it has no reader") == true)
  }

  @Test func `unlocking for reading while a writer holds the lock ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try await onCoroutine {
        let lock = FairReadWriteLock()
        try lock.withWriteLock { lock.unlockRead() }
      }
    }
    #expect(died?.said("although it has no reader") == true)
  }

  @Test func `unlocking for writing another writer's lock ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try await onSerialQueue {
        let lock = FairReadWriteLock()
        co_launch { try lock.withWriteLock { try waitForCancellation() } }
        try co_yield()
        lock.unlockWrite()
      }
    }
    #expect(died?.said("only by who has locked it for writing") == true)
  }

  @Test func `unlocking for writing while readers hold the lock ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let lock = FairReadWriteLock()
      #expect(lock.tryLockRead())
      lock.unlockWrite()
    }
    #expect(died?.said("only by who has locked it for writing") == true)
  }
}
