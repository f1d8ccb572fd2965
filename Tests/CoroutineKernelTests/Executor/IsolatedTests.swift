import Dispatch
import Synchronization
import Testing

@testable import Coroutine

@Suite("co_isolated", .timeLimit(.minutes(5)))
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
    for isReentrant in [true, false] {
      let job = co_launch(on: queue, start: .immediate) {
        let before = currentTag
        return [before, try co_isolated(ledger, reentrant: isReentrant) { _ in currentTag }, currentTag]
      }
      #expect(try await job.value == [nil, "turn", "turn"])
    }
  }

  @Test func `an error of the body comes out, on the coroutine's own queue`() async throws {
    let ledger = Ledger(on: taggedQueue("errors"))
    let seen = try await onCoroutine(on: taggedQueue("home")) {
      "\(outcome { try co_isolated(ledger) { _ in throw Oops("body") } }) \(currentTag ?? "")"
    }
    #expect(seen == "Oops(body) home")
  }

  /// Nothing that a program does has this effect.
  ///
  /// The alternative would be an actor that is held for ever.
  @Test func `a body that cannot go back to the actor ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let ledger = Ledger(on: taggedQueue("ledger"))
      try await onCoroutine(on: taggedQueue("home")) {
        try co_isolated(ledger, reentrant: false) { _ in
          try co_switch(to: taggedQueue("away"))
          let job = try Carrier.requireJob().1
          _ = job.pointee.flags.bitwiseOr(JobFlags.keepsThread, ordering: .acquiringAndReleasing)
        }
      }
    }
    #expect(died?.said("could not go back to the actor whose body it leaves") == true)
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

  @Test func `an actor with a foreign executor cannot be held`() async throws {
    actor Plain {}
    let plain = Plain()
    let seen = try await onCoroutine { outcome { try co_isolated(plain, reentrant: false) { _ in } } }
    #expect(seen.contains("wouldDeadlock"))
  }

  @Test func `outside a coroutine it throws`() {
    #expect(outcome { try co_isolated(Ledger(on: taggedQueue("none"))) { _ in } }.contains("notInCoroutine"))
  }

  @Test func `reentrant, others use the actor while the body waits`() async throws {
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

  /// The invariant: outside of a body, `isConsistent` is true.
  @Test func `exclusive, nobody sees the actor while the body waits`() async throws {
    let queue = taggedQueue("exclusive")
    let ledger = Ledger(on: queue)
    let violations = Locked(0)
    let rounds = 100
    try await withThrowingTaskGroup(of: Void.self) { group in
      for index in 0..<3 {
        group.addTask {
          try await onCoroutine(on: index == 0 ? queue : index == 1 ? taggedQueue("elsewhere") : nil) {
            for _ in 0..<rounds {
              try co_isolated(ledger, reentrant: false) { ledger in
                if !ledger.isConsistent { violations.withLock { $0 += 1 } }
                ledger.isConsistent = false
                try co_delay(.microseconds(50))
                try co_await { await Task.yield() }
                ledger.balance += 1
                ledger.isConsistent = true
              }
              try co_yield()
            }
          }
        }
        group.addTask {
          for _ in 0..<rounds where await !ledger.readConsistency() { violations.withLock { $0 += 1 } }
        }
        group.addTask {
          try await onCoroutine(on: queue) {
            for _ in 0..<rounds {
              try co_isolated(ledger) { ledger in
                if !ledger.isConsistent { violations.withLock { $0 += 1 } }
                try co_yield()
                if !ledger.isConsistent { violations.withLock { $0 += 1 } }
              }
            }
          }
        }
      }
      try await group.waitForAll()
    }
    #expect(violations.current == 0)
    #expect(await ledger.balance == 3 * rounds)
  }

  @Test func `jobs that an exclusive body has deferred keep the order of their thread`() async throws {
    let ledger = Ledger(on: taggedQueue("order"))
    let calls = 300
    try await onCoroutine {
      try co_isolated(ledger, reentrant: false) { ledger in
        Self.postAdditions(calls, to: ledger)
        // The driver defers as many jobs as it may run before it reads the clock, and then resumes this body.
        try co_yield()
      }
    }
    while await ledger.notes.count < calls { await Task.yield() }
    #expect(await ledger.notes == Array(0..<calls))
  }

  /// Calls the actor from Tasks that start at once: each has enqueued its call when the next one starts.
  private static func postAdditions(_ count: Int, to ledger: Ledger) {
    for index in 0..<count { Task.immediate { await ledger.note(index) } }
  }

  @Test func `exclusive, the body itself may call the actor by co_await and by co_isolated`() async throws {
    let ledger = Ledger(on: taggedQueue("own"))
    let seen = try await onCoroutine {
      try co_isolated(ledger, reentrant: false) { actor in
        actor.balance = 5
        return [try co_await { await ledger.add(1) }, try co_isolated(ledger) { $0.add(1) }]
      }
    }
    #expect(seen == [6, 7])
  }

  @Test func `a coroutine in a reentrant body cannot hold the actor`() async throws {
    let queue = taggedQueue("upgrade")
    let ledger = Ledger(on: queue)
    let seen = try await onCoroutine(on: queue) {
      try co_isolated(ledger) { _ in outcome { try co_isolated(ledger, reentrant: false) { _ in } } }
    }
    #expect(seen.contains("wouldDeadlock"))
  }

  @Test func `a cancelled coroutine does not wait for the actor, and others go on`() async throws {
    let queue = taggedQueue("cancelled")
    let ledger = Ledger(on: queue)
    let (inside, leave) = (Gate(), Gate())
    let holder = co_launch(on: queue) {
      try co_isolated(ledger, reentrant: false) { _ in
        inside.open()
        try leave.pass()
      }
    }
    try await onCoroutine { try inside.pass() }
    let exclusive = co_launch(on: queue) { try co_isolated(ledger, reentrant: false) { _ in } }
    let reentrant = co_launch(on: queue) { try co_isolated(ledger) { $0.add(1) } }
    try await onCoroutine(on: queue) { for _ in 0..<10 { try co_yield() } }
    exclusive.cancel()
    #expect(await asyncOutcome { try await exclusive.value } == "CancellationError")
    leave.open()
    try await holder.value
    #expect(try await reentrant.value == 1)
  }
}
