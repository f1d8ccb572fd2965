import Coroutine
import Dispatch
import Testing

/// The rules of cancellation, tested with every lock and gate.
@Suite("Locks and gates, cancelled", .timeLimit(.minutes(10)))
struct LockCancellationTests {
  enum Place: String, CaseIterable, Sendable {
    case mutex
    case semaphore
    case readLock
    case writeLock
    case group
    case latch
    case condition
    case once
    case singleFlight
  }

  /// A lock or gate at which every coroutine waits until `open`.
  struct Shut: Sendable {
    let wait: @Sendable () throws -> Void
    /// Called by the coroutine that created it.
    let open: @Sendable () throws -> Void
  }

  @Test(arguments: Place.allCases, [0, 1, 2])
  func `a cancelled waiter, anywhere in the queue, throws at once, and the others are served in order`(
    _ place: Place,
    _ position: Int
  ) async throws {
    let trace = try await onSerialQueue {
      let (shut, row) = (try make(place), Queueing())
      let jobs = try ["a", "b", "c"].map { try row.enqueue($0, shut.wait) }
      jobs[position].cancel(Oops("cancelled"))
      try row.settle()
      #expect(row.trace.all == ["\(["a", "b", "c"][position]): Oops(cancelled)"])
      try shut.open()
      for job in jobs { try job.join() }
      return row.trace.all
    }
    var others = ["a", "b", "c"]
    let cancelled = others.remove(at: position)
    #expect(trace == ["\(cancelled): Oops(cancelled)"] + others)
  }

  @Test(arguments: Place.allCases)
  func `a waiter that was cancelled before the lock opens is not served, and the next one is`(
    _ place: Place
  ) async throws {
    let (opener, sleeper) = (taggedQueue("opener"), taggedQueue("sleeper"))
    let (ready, go) = (Gate(), Gate())
    let shut = Locked<Shut?>(nil)
    let main = co_launch(on: opener) {
      let made = try make(place)
      shut.current = made
      ready.open()
      try go.pass()
      try made.open()
    }
    try await onCoroutine { try ready.pass() }
    let wait = try #require(shut.current).wait
    let jobs = (0..<2).map { _ in co_launch(on: sleeper) { outcome(wait) } }
    // A block of the serial queue runs only when both have parked.
    try await onBlock(of: sleeper) {}
    // While the queue sleeps no interrupt arrives: the claim for the first waiter is refused by its flag alone.
    sleeper.suspend()
    jobs[0].cancel(Oops("first"))
    go.open()
    let opened = await asyncOutcome { try await main.value }
    sleeper.resume()
    #expect(opened == "()")
    #expect(try await jobs[0].value == "Oops(first)")
    #expect(try await jobs[1].value == "()")
  }

  @Test(arguments: Place.allCases)
  func `a coroutine that is cancelled already does not get an open lock`(_ place: Place) async throws {
    try await onSerialQueue {
      let shut = try make(place)
      try shut.open()
      let job = co_launch {
        _ = outcome { try waitForCancellation() }
        try shut.wait()
      }
      try co_yield()
      job.cancel(Oops("before"))
      #expect(outcome { try job.join() } == "Oops(before)")
    }
  }

  @Test(.inWorlds, arguments: Place.allCases)
  func `a deadline ends the wait`(_ place: Place) throws {
    let shut = try make(place)
    #expect(outcome { try co_launch { try co_timeout(.milliseconds(1), shut.wait) }.join() } == "TimeoutError")
    #expect(worldTime == .milliseconds(1))
    let row = Queueing()
    let next = try row.enqueue("next", shut.wait)
    try shut.open()
    try next.join()
    #expect(row.trace.all == ["next"])
  }

  @Test(arguments: Place.allCases)
  func `in a shield the wait goes on until it is served`(_ place: Place) async throws {
    try await onSerialQueue {
      let (shut, row) = (try make(place), Queueing())
      let job = try row.enqueue("shielded") { try co_shield(shut.wait) }
      job.cancel()
      try row.settle()
      #expect(row.trace.all.isEmpty)
      try shut.open()
      try job.join()
      #expect(row.trace.all == ["shielded"])
    }
  }

  @Test(arguments: Place.allCases)
  func `outside a coroutine waiting throws, whether it would have to wait or not`(_ place: Place) async throws {
    let shut = try await onSerialQueue {
      let shut = try make(place)
      try shut.open()
      return shut
    }
    #expect(outcome { try shut.wait() } == "notInCoroutine")
  }
}

/// Creates a closed lock or gate; called on a serial queue, by the coroutine that will open it.
private func make(_ place: LockCancellationTests.Place) throws -> LockCancellationTests.Shut {
  switch place {
  case .mutex:
    let lock = FairMutex()
    try lock.lock()
    return LockCancellationTests.Shut(wait: { try lock.withLock {} }, open: { lock.unlock() })
  case .semaphore:
    let semaphore = FairSemaphore(3)
    try semaphore.acquire(3)
    return LockCancellationTests.Shut(
      wait: {
        try semaphore.acquire(2)
        semaphore.release(2)
      },
      open: { semaphore.release(3) }
    )
  case .readLock:
    let lock = FairReadWriteLock()
    try lock.lockWrite()
    return LockCancellationTests.Shut(wait: { try lock.withReadLock {} }, open: { lock.unlockWrite() })
  case .writeLock:
    let lock = FairReadWriteLock()
    try lock.lockRead()
    return LockCancellationTests.Shut(wait: { try lock.withWriteLock {} }, open: { lock.unlockRead() })
  case .group:
    let group = WaitGroup()
    group.add()
    return LockCancellationTests.Shut(wait: { try group.wait() }, open: { group.done() })
  case .latch:
    let latch = Latch(1)
    return LockCancellationTests.Shut(wait: { try latch.wait() }, open: { latch.countDown() })
  case .condition:
    let (lock, isOpen) = (FairMutex(), Flag())
    let condition = Condition(lock)
    return LockCancellationTests.Shut(
      wait: { try lock.withLock { try condition.wait { isOpen.isRaised } } },
      open: {
        isOpen.raise()
        condition.broadcast()
      }
    )
  case .once:
    let (once, gate) = (Once<Void>(), Gate())
    let runner = co_launch { try once.run { try gate.pass() } }
    try letRun()
    return LockCancellationTests.Shut(
      wait: { try once.run {} },
      open: {
        gate.open()
        try runner.join()
      }
    )
  case .singleFlight:
    let (flights, gate) = (SingleFlight<Int, Void>(), Gate())
    return LockCancellationTests.Shut(wait: { try flights.run(1) { try gate.pass() } }, open: { gate.open() })
  }
}
