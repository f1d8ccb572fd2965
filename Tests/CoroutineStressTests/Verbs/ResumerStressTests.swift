import Coroutine
import Dispatch
import Testing

@Suite("Stress: resumers", .timeLimit(.minutes(10)))
struct ResumerStressTests {
  @Test func `if threads use one resumer at once, exactly one use counts`() async throws {
    // Each late use is reported by a line, so there are few rounds.
    let stress = Stress()
    let threads = 3
    let size = stress.rounds(300)
    let objects = Census()
    let board = ResumerBoard<Heard>(size)
    let jobs = (0..<size).map { index in
      co_launch {
        let heard = try co_suspend { (done: Resumer<Heard>) in board.lay(done, at: index) }
        return [heard.index, heard.thread]
      }
    }
    try await board.isFull()
    try await onThreads(threads) { thread in
      for index in 0..<size { board[index]?.resume(Heard(index: index, thread: thread, object: objects.citizen())) }
    }
    for (index, job) in jobs.enumerated() {
      let seen = try await job.value
      #expect(seen[0] == index && (0..<threads).contains(seen[1]), "\(seen) \(stress.replay)")
    }
    await until(objects, shows: 0)
  }

  private struct Heard: Sendable {
    var index: Int
    var thread: Int
    var object: Census.Citizen
  }

  @Test func `a resumer that is used before, while or after its coroutine parks always wakes it`() async throws {
    let stress = Stress()
    let count = stress.rounds(100_000)
    let wrong = try await co_launch(on: DispatchQueue(label: "coroutine.stress.parking")) {
      // The helper's thread answers at once, and so at every stage of the coroutine's parking.
      let helper = DispatchQueue(label: "coroutine.stress.helper")
      var random = stress.random(0)
      var wrong = 0
      for number in 0..<count {
        let early = Int.random(in: 0..<8, using: &random) == 0
        let spins = Int.random(in: 0..<200, using: &random)
        let answer: Int = try co_suspend { done in
          if early {
            done.resume(number)
          } else {
            helper.async { done.resume(number) }
            for _ in 0..<spins { spin() }
          }
        }
        if answer != number { wrong += 1 }
      }
      return wrong
    }.value
    #expect(wrong == 0, "\(stress.replay)")
  }

  @Test func `resumers that are dropped on other threads wake every coroutine`() async throws {
    let stress = Stress()
    let size = stress.rounds(20_000)
    let objects = Census()
    let jobs = (0..<size).map { _ in
      co_launch { [held = objects.citizen()] in
        defer { held.use() }
        do {
          try co_suspend { (done: Resumer<Void>) in DispatchQueue.global().async { withExtendedLifetime(done) {} } }
          return false
        } catch CoroutineError.abandoned {
          return true
        }
      }
    }
    for job in jobs { #expect(try await job.value, "\(stress.replay)") }
    await until(objects, shows: 0)
  }
}

@inline(never)
private func spin() {}
