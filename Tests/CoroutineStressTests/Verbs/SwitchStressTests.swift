import Coroutine
import Dispatch
import Testing

private actor Ledger {
  private let executor: CoroutineExecutor
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
  var bodies = 0
  init(on queue: DispatchQueue) { executor = CoroutineExecutor(queue) }
}

@Suite("Stress: changes of queues that are blocked now and then", .timeLimit(.minutes(10)))
struct SwitchStressTests {
  private static let key = DispatchSpecificKey<Int>()

  private struct Run: Sendable {
    let places: [DispatchQueue]
    let ledgers: [Ledger]
    let arrived = Census()
    let givenUp = Census()
    let bodies = Census()
    let wrong = Census()

    /// One change of the queue, under a deadline that may be over before or after it.
    func step(_ random: inout SeededRandom) throws {
      let before = DispatchQueue.getSpecific(key: key)
      let target = Int(random.next() % UInt64(places.count))
      let deadline = Duration.microseconds(Int(random.next() % 60) + 1)
      let kind = random.next() % 3
      do {
        if kind == 0 {
          let isReached = try co_timeout(deadline) {
            try co_switch(to: places[target])
            return DispatchQueue.getSpecific(key: key) == target
          }
          if !isReached { wrong.change() }
        } else {
          try co_timeout(deadline) { try visit(target, &random) }
          if DispatchQueue.getSpecific(key: key) != before { wrong.change() }
        }
        arrived.change()
      } catch is TimeoutError {
        givenUp.change()
        // A switch that was given up as it arrived has arrived.
        let now = DispatchQueue.getSpecific(key: key)
        if now != before, !(kind == 0 && now == target) { wrong.change() }
      }
    }

    private func visit(_ target: Int, _ random: inout SeededRandom) throws {
      let waits = random.next().isMultiple(of: 2)
      try co_isolated(ledgers[target]) { ledger in
        ledger.bodies += 1
        bodies.change()
        if DispatchQueue.getSpecific(key: key) != target { wrong.change() }
        if waits { try co_yield() }
      }
    }
  }

  @Test func `a coroutine is on one queue, and is back on its own when it has given up`() async throws {
    let stress = Stress()
    let places = queues(4)
    for (index, place) in places.enumerated() { place.setSpecific(key: Self.key, value: index) }
    let run = Run(places: places, ledgers: places.map { Ledger(on: $0) })
    let objects = Census()
    let steps = stress.rounds(8_000, least: 50)
    for round in 0..<4 {
      let jobs = (0..<12).map { index in
        co_launch(on: index.isMultiple(of: 3) ? nil : places[index % 4]) { [held = objects.citizen()] in
          var random = stress.random(round * 100 + index)
          for _ in 0..<steps / 4 { try run.step(&random) }
          held.use()
        }
      }
      let ended = Census()
      for job in jobs { job.finally { ended.change() } }
      // Two threads block queues for a moment, and cancel a coroutine of each round.
      try await onThreads(2) { thread in
        var random = stress.random(round * 100 + 50 + thread)
        var count = 0
        while ended.now < jobs.count {
          let rest = Int(random.next() % 4_000)
          places[Int(random.next() % 4)].sync { for _ in 0..<rest { _ = ended.now } }
          count += 1
          if count == 40 { jobs[thread].cancel(Mark(number: round)) }
        }
      }
      for (index, job) in jobs.enumerated() {
        do { try await job.value } catch let mark as Mark { #expect(index < 2 && mark.number == round) }
      }
    }
    await until(objects, shows: 0)
    #expect(run.wrong.now == 0, "\(stress.replay)")
    #expect(run.arrived.now > 0 && run.givenUp.now > 0, "\(run.arrived.now) \(run.givenUp.now) \(stress.replay)")
    var bodies = 0
    for ledger in run.ledgers { bodies += await ledger.bodies }
    #expect(bodies == run.bodies.now, "\(stress.replay)")
  }

  @Test func `a coroutine that goes to the workers and back is where it has gone`() async throws {
    let stress = Stress()
    let home = queues(1)[0]
    home.setSpecific(key: Self.key, value: 0)
    let (objects, arrived, wrong) = (Census(), Census(), Census())
    let steps = stress.rounds(8_000, least: 50)
    let jobs = (0..<16).map { index in
      co_launch(on: home) { [held = objects.citizen()] in
        var random = stress.random(index)
        for _ in 0..<steps {
          let target: any LaunchTarget = random.next().isMultiple(of: 2) ? home : WorkerPoolExecutor.shared
          do {
            try co_timeout(.microseconds(Int(random.next() % 60) + 1)) { try co_switch(to: target) }
          } catch is TimeoutError { continue }
          arrived.change()
          if (DispatchQueue.getSpecific(key: Self.key) == 0) != (target is DispatchQueue) { wrong.change() }
        }
        held.use()
      }
    }
    for job in jobs { try await job.value }
    await until(objects, shows: 0)
    #expect(wrong.now == 0 && arrived.now > 0, "\(stress.replay)")
  }
}
