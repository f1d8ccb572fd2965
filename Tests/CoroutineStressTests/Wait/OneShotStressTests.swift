import Coroutine
import Dispatch
import Testing

/// An outcome and a cancellation meet, at every stage of the wait: both walk over the same coroutines, in one order, on
/// queues of their own.
@Suite("Stress: one outcome for one coroutine", .timeLimit(.minutes(10)))
struct OneShotStressTests {
  private let stress = Stress()
  private let size = 50

  /// The number of batches of `size` coroutines.
  private func batches(_ usual: Int) -> Int { stress.rounds(usual / size) }

  @Test func `each answer is received by its asker, or counted as late`() async throws {
    let queues = queues(3)
    let objects = Census()
    for _ in 0..<batches(50_000) {
      let answers = Census()
      let actor = co_actor(of: Reply<Census.Citizen>.self, on: queues[0]) { mailbox in
        while let reply = try mailbox.receive() {
          answers.change()
          reply(objects.citizen())
        }
      }
      let askers = (0..<size).map { _ in co_launch(on: queues[1]) { try actor.ask { $0 } } }
      let walk = co_launch(on: queues[2]) { for asker in askers.reversed() { asker.cancel() } }
      var received = 0
      for asker in askers {
        if (try? await asker.value) != nil { received += 1 }
      }
      try await walk.value
      actor.stop()
      try await actor.job.value
      #expect(received + actor.lateAnswers == answers.now, "\(stress.replay)")
    }
    await until(objects, shows: 0)
  }

  @Test func `a call of async code returns or is left, and a call to the end returns`() async throws {
    let queues = queues(2)
    let (begun, ended) = (Census(), Census())
    for round in 0..<batches(50_000) {
      let isToEnd = round.isMultiple(of: 2)
      let calls = (0..<size).map { number in
        co_launch(on: queues[0]) {
          try co_yield()
          guard isToEnd else { return try co_await { await Self.yielding(number) } == number }
          let value = try co_awaitToEnd {
            begun.change()
            return await Self.yielding(number)
          }
          ended.change()
          return value == number
        }
      }
      let walk = co_launch(on: queues[1]) { for call in calls { call.cancel() } }
      for call in calls {
        do {
          #expect(try await call.value, "\(stress.replay)")
        } catch is CancellationError {
        }
      }
      try await walk.value
    }
    #expect(begun.now == ended.now, "\(stress.replay)")
  }

  @Test func `a Task's wait ends by the outcome or by its cancellation, once`() async throws {
    let queues = queues(2)
    for _ in 0..<batches(50_000) {
      let promises = (0..<size).map { _ in Promise<Int>() }
      // A second consumer, so that a Task that is cancelled leaves the job.
      let jobs = promises.map { promise in co_launch(on: queues[0]) { try co_await(promise.uncancelled) } }
      let joiners = jobs.map { job in co_launch(on: queues[0]) { try job.join() } }
      // When this has run, all of them wait.
      try await co_launch(on: queues[0]) {}.value
      let tasks = (0..<size).map { index in
        (
          Task { try await promises[index].uncancelled.value },
          Task { try await jobs[index].value }
        )
      }
      let settling = co_launch(on: queues[0]) { for promise in promises { promise.fulfill(7) } }
      let cancelling = co_launch(on: queues[1]) {
        for (one, other) in tasks {
          one.cancel()
          other.cancel()
        }
      }
      try await settling.value
      try await cancelling.value
      for task in tasks.flatMap({ [$0.0, $0.1] }) {
        do {
          #expect(try await task.value == 7, "\(stress.replay)")
        } catch is CancellationError {
        }
      }
      for joiner in joiners { #expect(try await joiner.value == 7, "\(stress.replay)") }
    }
  }

  private static func yielding(_ number: Int) async -> Int {
    await Task.yield()
    return number
  }
}
