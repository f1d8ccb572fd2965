import Testing

@testable import Coroutine

@Suite("Names of objects in dumps", .timeLimit(.minutes(5)))
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
