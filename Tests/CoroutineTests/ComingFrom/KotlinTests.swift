import Coroutine
import CoroutineTesting
import Dispatch
import Testing

/// What docs/coming-from/kotlin.md shows, compiled and run.
@Suite("Coming from Kotlin", .inWorlds, .timeLimit(.minutes(10)))
struct KotlinTests {
  private func load() throws -> Int {
    try co_yield()
    return 1
  }

  /// What a world does not simulate is compiled alone.
  private func outsideOfWorlds() throws {
    print(try co_launch { 1 }.blockingWait())
    CoroutineRuntime.unhandledErrorHandler = { print($0) }
    co_launch(on: .main) { print("main") }
    co_main { try co_yield() }
  }

  @Test func `launches`() throws {
    let queue = DispatchQueue(label: "kotlin")
    let job = co_launch { try load() }
    let value = try job.join()
    #expect(value == 1)
    try job.outcome()
    try job.cancelAndJoin()
    try co_scope { scope in
      scope.launch { try co_yield() }
    }
    try co_scope(failures: .isolated) { scope in
      scope.launch { try co_yield() }
    }
    let there = try co_launch(on: queue) { 1 }.join()
    let blocking = try co_blocking { 1 }
    #expect(there + blocking == 2)
    let pool = co_launch(on: WorkerPoolExecutor.shared) { 1 }
    let named = co_launch(name: "x") { 1 }
    let lazy = co_launch(start: .lazy) { 1 }
    let immediate = co_launch(start: .immediate) { 1 }
    let sum = try co_all([pool, named, lazy, immediate]).reduce(0, +)
    #expect(sum == 4)
    let depth = CoroutineLocal(default: 0)
    let inner = depth.withValue(1) { depth.value }
    #expect(inner == 1)
    try co_switch(to: queue)
  }

  private func stop() {}

  @Test func `time and cancellation`() throws {
    try co_delay(.seconds(1))
    let one = try co_suspend(onCancel: stop) { done in done.resume(1) }
    let two = try co_timeout(.seconds(1)) { try load() + 1 }
    #expect(one + two == 3)
    let maybe = try? co_timeout(.seconds(1)) { 1 }
    #expect(maybe == 1)
    try co_shield { try co_yield() }
    #expect(!co_isCancelled)
    try co_checkCancelled()
    let (job, other) = (co_launch { 1 }, co_launch { 2 })
    job.finally { print("ended") }
    let all = try co_all([job, other])
    #expect(all == [1, 2])
    let cancelled = co_launch { try co_delay(.seconds(9)) }
    cancelled.cancel()
    #expect(throws: CancellationError.self) { try cancelled.join() }
  }

  @Test func `channels, flows and locks`() throws {
    let channel = Channel<Int>(10)
    try channel.send(1)
    let first = try channel.receive()
    let sent = channel.trySend(2)
    #expect(first == 1 && sent == .sent)
    let selected = try co_select {
      channel.onReceive { $0 ?? 0 }
        .onTimeout(.seconds(1)) { 0 }
    }
    #expect(selected == 2)
    channel.close()
    try channel.forEach { Issue.record("\($0)") }
    _ = (Channel<Int>(.dropOldest(1)), Channel<Int>(.unbounded))

    let numbers = co_sequence(of: Int.self) { yield in
      var number = 0
      while true {
        number += 1
        try yield(number)
      }
    }
    for number in numbers.prefix(2) { #expect(number <= 2) }
    #expect(Array(numbers.prefix(2)) == [3, 4])

    let shared = Broadcast<Int>(16)
    let subscription = shared.subscribe()
    try shared.send(1)
    let received = try subscription.receive()
    let state = Watch(0)
    try state.update { $0 += 1 }
    let waited = try state.wait { $0 > 0 }
    #expect(received == 1 && waited == 1)
    let (mutex, semaphore) = (FairMutex(), FairSemaphore(4))
    try mutex.withLock { try co_yield() }
    try semaphore.withPermit { try co_yield() }
    let actor = co_actor(of: Int.self) { mailbox in
      while let message = try mailbox.receive() { print(message) }
    }
    try actor.tell(1)
    actor.stop()
    let doubled = try co_map([1, 2], limit: 8) { $0 * 2 }
    #expect(doubled == [2, 4])
  }
}
