import Testing

@testable import Coroutine

@Suite("Names of objects in dumps", .timeLimit(.minutes(10)))
struct NameTests {
  private func text(of object: some Inspectable) -> String { object.inspect(JobNames()) }

  @Test func `a channel, a lock, a limiter and a promise are shown with their names`() {
    #expect(text(of: Channel<Int>(8).named("jobs")).hasPrefix("Channel<Int> \"jobs\" 0x"))
    #expect(text(of: FairMutex().named("accounts")).hasPrefix("FairMutex \"accounts\" 0x"))
    #expect(text(of: FairSemaphore(2).named("slots")).hasPrefix("FairSemaphore \"slots\" 0x"))
    #expect(text(of: FairReadWriteLock().named("table")).hasPrefix("FairReadWriteLock \"table\" 0x"))
    #expect(text(of: RateLimiter(1).named("mails")).hasPrefix("RateLimiter \"mails\" 0x"))
    #expect(text(of: Promise<Int>().named("login")).hasPrefix("Promise<Int> \"login\" 0x"))
    #expect(text(of: FairMutex().named("a\nb \"c\"")).contains("\"a\\nb \\\"c\\\"\""))
    #expect(text(of: FairMutex().named("old").named("new")).contains("\"new\""))
  }

  @Test(.inWorlds) func `a dump names the condition, the latch and the group that a coroutine waits for`() throws {
    let mutex = FairMutex().named("queue")
    let condition = Condition(mutex).named("not empty")
    let latch = Latch(3).named("ready")
    let group = WaitGroup().named("pages")
    group.add(2)
    let isFull = Flag()
    let jobs = [
      co_launch { try mutex.withLock { try condition.wait { isFull.isRaised } } }, co_launch { try latch.wait() },
      co_launch { try group.wait() },
    ]
    try settleWorld()
    let dump = Simulation.dump
    #expect(dump.contains("(Condition \"not empty\" 0x") && dump.contains(" of FairMutex \"queue\" 0x"), "\(dump)")
    #expect(dump.contains("(Latch \"ready\" 0x") && dump.contains(", 3 left)"), "\(dump)")
    #expect(dump.contains("(WaitGroup \"pages\" 0x") && dump.contains(", 2 left)"), "\(dump)")
    isFull.raise()
    condition.signal()
    latch.countDown(3)
    for _ in 0..<2 { group.done() }
    for job in jobs { try job.join() }
  }

  @Test func `names of conditions, latches and groups go with them`() {
    for _ in 0..<100 {
      let group = WaitGroup().named("gone")
      let latch = Latch(1).named("gone")
      let condition = Condition(FairMutex()).named("gone")
      for object in [group, latch, condition] as [AnyObject] { #expect(ObjectNames.name(of: object) == "gone") }
    }
    for _ in 0..<100 {
      let all = [WaitGroup(), Latch(1), Condition(FairMutex())] as [AnyObject]
      for object in all { #expect(ObjectNames.name(of: object) == nil) }
    }
  }

  @Test func `a name goes with its object`() {
    for _ in 0..<100 {
      let named = Channel<Int>(1).named("gone")
      #expect(ObjectNames.name(of: named) == "gone")
    }
    // At an address that one of them had, most likely.
    for _ in 0..<100 { #expect(ObjectNames.name(of: Channel<Int>(1)) == nil) }
  }

  @Test(.inWorlds) func `a Once is called by its own name`() throws {
    let once = Once<Int>().named("configuration")
    let first = co_launch(name: "first") {
      try once.run {
        try co_delay(.seconds(1))
        return 1
      }
    }
    try settleWorld()
    let second = co_launch { try once.run { 2 } }
    try settleWorld()
    let dump = Simulation.dump
    #expect(dump.contains("Once \"configuration\" 0x") && dump.contains("run by"), "\(dump)")
    #expect(!dump.contains("FairMutex"), "\(dump)")
    #expect(try first.join() == 1 && second.join() == 1)
  }

  @Test func `the number of workers is that of the pool`() {
    #expect(CoroutineRuntime.workerCount == WorkerPool.shared.workers.count)
  }
}
