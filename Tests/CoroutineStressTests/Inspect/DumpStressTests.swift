import Coroutine
import Dispatch
import Testing

@Suite("Stress: dumps", .timeLimit(.minutes(10)))
struct DumpStressTests {
  /// The sources of waits are released as soon as the waits are over, while dumps inspect them: the sanitizers see an
  /// access to freed memory.
  @Test func `dumps inspect the sources that thousands of coroutines wait for, which are released at any moment`()
    async throws
  {
    let stress = Stress()
    let (pairs, rounds) = (stress.crowd(1_000), stress.rounds(40))
    let ended = Census()
    let queues = queues(2)
    let jobs = (0..<pairs).map { number in
      co_launch(on: number % 3 == 2 ? nil : queues[number % 3], name: "pair \(number)") {
        defer { ended.change() }
        var random = stress.random(number)
        for _ in 0..<rounds {
          switch random.next() % 6 {
          case 0: try throughChannel(queues)
          case 1: try throughSelect(queues)
          case 2: try throughMutex()
          case 3: try throughPromise()
          case 4: try throughSemaphore()
          default: try co_yield()
          }
        }
      }
    }
    let dumps = Census()
    try await onThreads(2) { _ in
      repeat {
        let dump = CoroutineRuntime.dump()
        if dump.contains("live coroutine") { dumps.change() }
      } while ended.now < pairs
    }
    for job in jobs { try await job.value }
    #expect(dumps.now >= 2, "\(stress.replay)")
  }
}

/// The channel is used by this function and its partner only.
private func throughChannel(_ queues: [DispatchQueue]) throws {
  let channel = Channel<Int>()
  let sender = co_launch(on: queues[1]) { try channel.send(1) }
  #expect(try channel.receive() == 1)
  try sender.join()
}

private func throughSelect(_ queues: [DispatchQueue]) throws {
  let (one, other, never) = (Channel<Int>(), Channel<[Int]>(1), Promise<Int>())
  let partner = co_launch(on: queues[0]) {
    try co_select {
      one.onSend(1) {}
      other.onSend([1]) {}
    }
  }
  let got = try co_select {
    never.onAwait { _ in 0 }
    one.onReceive { $0 ?? 0 }
    other.onReceive { $0?.first ?? 0 }
    SelectCase.onTimeout(.seconds(600)) { 0 }
  }
  #expect(got == 1)
  try partner.join()
}

private func throughMutex() throws {
  let mutex = FairMutex()
  try mutex.lock()
  let waiter = co_launch { try mutex.withLock {} }
  for _ in 0..<4 { try co_yield() }
  mutex.unlock()
  try waiter.join()
}

private func throughSemaphore() throws {
  let semaphore = FairSemaphore(1)
  try semaphore.acquire()
  co_launch { try semaphore.acquire() }
  try co_yield()
  semaphore.release()
}

private func throughPromise() throws {
  let promise = Promise<Int>()
  co_launch { promise.fulfill(1) }
  #expect(try co_await(promise) == 1)
}
