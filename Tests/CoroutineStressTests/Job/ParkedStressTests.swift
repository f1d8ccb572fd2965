import Coroutine
import Dispatch
import Testing

@Suite("Stress: parked coroutines", .serialized, .timeLimit(.minutes(15)))
struct ParkedStressTests {
  @Test func `a million coroutines parked at once, every one resumed once`() async throws {
    let stress = Stress()
    let count = stress.crowd(1_000_000)
    let board = ResumerBoard<Int>(count)
    let (resumed, wrong) = (Census(), Census())
    let all = Promise<Void>()
    let queue = DispatchQueue(label: "coroutine.stress.parked")
    let park: @Sendable (Int, ResumerBoard<Int>) throws -> Void = { index, board in
      let value = try co_suspend { (done: Resumer<Int>) in board.lay(done, at: index) }
      if value != index { wrong.change() }
      if resumed.change() == count { all.fulfill(()) }
    }
    try await Self.warmUp(park)
    resumed.change(by: -1)
    for index in 0..<count {
      co_launch(on: queue, stack: stress.smallStack) { try park(index, board) }
    }
    try await board.isFull()
    #expect(resumed.now == 0)
    #expect(CoroutineRuntime.liveCount >= count)
    for index in 0..<count { board[index]?.resume(index) }
    try await co_launch { try co_await(all) }.value
    // A late resume would show as an extra one.
    for _ in 0..<100 { try await co_launch(on: queue) { try co_yield() }.value }
    #expect(resumed.now == count)
    #expect(wrong.now == 0)
  }

  /// Runs the body once on a roomy stack: Swift makes a type's metadata at its first use, which takes more than 16 KiB.
  private static func warmUp(_ park: @escaping @Sendable (Int, ResumerBoard<Int>) throws -> Void) async throws {
    let board = ResumerBoard<Int>(1)
    let job = co_launch { try park(0, board) }
    try await board.isFull()
    board[0]?.resume(0)
    try await job.value
  }

  @Test func `a hundred thousand coroutines parked on one promise, half of them cancelled, then the rest released`()
    async throws
  {
    let stress = Stress()
    let count = stress.crowd(100_000)
    let objects = Census()
    let gate = Promise<Int>()
    let (parked, all) = (Census(), Promise<Void>())
    let queue = DispatchQueue(label: "coroutine.stress.parked")
    let jobs = (0..<count).map { index in
      co_launch(on: queue, stack: .bytes(64 * 1024)) { [held = objects.citizen()] in
        defer { held.use() }
        if parked.change() == count { all.fulfill(()) }
        return try co_await(gate)
      }
    }
    try await co_launch { try co_await(all) }.value
    for index in stride(from: 0, to: count, by: 2) { jobs[index].cancel(Mark(number: index)) }
    gate.fulfill(7)
    for (index, job) in jobs.enumerated() {
      do {
        let value = try await job.value
        #expect(value == 7 && !index.isMultiple(of: 2), "\(stress.replay)")
      } catch {
        #expect(error as? Mark == Mark(number: index) && index.isMultiple(of: 2), "\(error), \(stress.replay)")
      }
    }
    await until(objects, shows: 0)
  }
}
