import Dispatch
import Synchronization
import Testing

@testable import Coroutine

@Suite("co_isolated", .timeLimit(.minutes(10)))
struct IsolatedTests {
  @Test func `on the actor's queue the body runs at once`() async throws {
    let queue = taggedQueue("ledger")
    let ledger = Ledger(on: queue)
    let seen = try await onCoroutine(on: queue) {
      try co_isolated(ledger) { ledger in
        ledger.balance += 2
        return ledger.balance
      }
    }
    #expect(seen == 2)
  }

  @Test func `from another queue or a worker the coroutine visits the actor's queue`() async throws {
    let ledger = Ledger(on: taggedQueue("visited"))
    let home = taggedQueue("home")
    let tags = try await onCoroutine(on: home) {
      [try co_isolated(ledger) { _ in currentTag }, currentTag]
    }
    #expect(tags == ["visited", "home"])
    #expect(try await onCoroutine { try co_isolated(ledger) { _ in currentTag } } == "visited")
    #expect(try await onCoroutine { currentTag } == nil)
  }

  @Test func `a coroutine that starts immediately elsewhere enters its queue's turn first`() async throws {
    let queue = taggedQueue("turn")
    let ledger = Ledger(on: queue)
    let job = co_launch(on: queue, start: .immediate) {
      let before = currentTag
      return [before, try co_isolated(ledger) { _ in currentTag }, currentTag]
    }
    #expect(try await job.value == [nil, "turn", "turn"])
  }

  @Test func `an error of the body comes out, on the coroutine's own queue`() async throws {
    let ledger = Ledger(on: taggedQueue("errors"))
    let seen = try await onCoroutine(on: taggedQueue("home")) {
      "\(outcome { try co_isolated(ledger) { _ in throw Oops("body") } }) \(currentTag ?? "")"
    }
    #expect(seen == "Oops(body) home")
  }

  @Test func `a body that has moved to another queue leaves the call on the coroutine's own`() async throws {
    let ledger = Ledger(on: taggedQueue("ledger"))
    let tags = try await onCoroutine(on: taggedQueue("home")) {
      [
        try co_isolated(ledger) { _ in
          try co_switch(to: taggedQueue("away"))
          return currentTag
        },
        currentTag,
      ]
    }
    #expect(tags == ["away", "home"])
  }

  @Test func `a default actor is reached by a Task, in which nothing waits`() async throws {
    actor Plain {
      var count = 0
    }
    let plain = Plain()
    for queue in [taggedQueue("plain"), nil] {
      let seen = try await onCoroutine(on: queue) {
        try co_isolated(plain) { plain in
          plain.count += 1
          return outcome { try co_yield() }
        }
      }
      #expect(seen.contains("notInCoroutine"))
      #expect(try await onCoroutine(on: queue) { outcome { try co_yield() } } == outcome {})
    }
    #expect(await plain.count == 2)
  }

  @Test func `outside a coroutine it throws`() {
    #expect(outcome { try co_isolated(Ledger(on: taggedQueue("none"))) { _ in } }.contains("notInCoroutine"))
  }

  @Test func `others use the actor while the body waits`() async throws {
    let queue = taggedQueue("reentrant")
    let ledger = Ledger(on: queue)
    let (inside, used) = (Gate(), Gate())
    let job = co_launch(on: queue) {
      try co_isolated(ledger) { ledger in
        ledger.isConsistent = false
        inside.open()
        try used.pass()
        ledger.isConsistent = true
      }
    }
    try await onCoroutine { try inside.pass() }
    #expect(await ledger.readConsistency() == false)
    used.open()
    try await job.value
    #expect(await ledger.readConsistency())
  }

  @Test func `the body itself may call the actor by co_await and by co_isolated`() async throws {
    let ledger = Ledger(on: taggedQueue("own"))
    let seen = try await onCoroutine {
      try co_isolated(ledger) { actor in
        actor.balance = 5
        return [try co_await { await ledger.add(1) }, try co_isolated(ledger) { $0.add(1) }]
      }
    }
    #expect(seen == [6, 7])
  }

  @Test func `a FairMutex keeps others from the actor while the body waits`() async throws {
    let queue = taggedQueue("mutex")
    let (ledger, mutex) = (Ledger(on: queue), FairMutex())
    let violations = Locked(0)
    try await withThrowingTaskGroup(of: Void.self) { group in
      for home in [queue, taggedQueue("elsewhere"), nil] {
        group.addTask {
          try await onCoroutine(on: home) {
            for _ in 0..<100 {
              try mutex.withLock {
                try co_isolated(ledger) { ledger in
                  if !ledger.isConsistent { violations.withLock { $0 += 1 } }
                  ledger.isConsistent = false
                  try co_yield()
                  try co_await { await Task.yield() }
                  ledger.balance += 1
                  ledger.isConsistent = true
                }
              }
            }
          }
        }
      }
      try await group.waitForAll()
    }
    #expect(violations.current == 0)
    #expect(await ledger.balance == 300)
  }

  @Test func `thousands of coroutines arrive at a queue and at the workers`() async throws {
    let queue = taggedQueue("crowd")
    let arrived = Locked(0)
    let jobs = (0..<2_000).map { number in
      co_launch(on: number.isMultiple(of: 2) ? nil : taggedQueue("home")) {
        if number.isMultiple(of: 2) { try co_switch(to: queue) } else { try co_switch(to: WorkerPoolExecutor.shared) }
        if (currentTag == "crowd") == number.isMultiple(of: 2) { arrived.withLock { $0 += 1 } }
      }
    }
    for job in jobs { try await job.value }
    #expect(arrived.current == 2_000)
  }
}
