import Coroutine
import Testing

@Suite("Actors: stopping and cancelling", .timeLimit(.minutes(10)))
struct ActorEndTests {
  typealias Command = ActorTests.Command

  @Test func `stop drains the mailbox and answers the questions in it`() async throws {
    try await onSerialQueue {
      let (counter, gate) = (ActorTests.counter(), Gate())
      try counter.tell(.hold(gate))
      for _ in 0..<10 { try counter.tell(.add(1)) }
      let asker = co_launch { try counter.ask { .total($0) } }
      for _ in 0..<3 { try co_yield() }
      counter.stop()
      #expect(outcome { try counter.tell(.add(1)) } == "ActorStoppedError")
      #expect(outcome { _ = try counter.ask { .total($0) } } == "ActorStoppedError")
      counter.stop()
      gate.open()
      #expect(try asker.join() == 10)
      try counter.job.join()
    }
  }

  @Test func `releasing the last handle stops the actor, which drains`() async throws {
    try await onSerialQueue {
      let trace = Trace()
      let job: Job<Void>
      do {
        let actor = co_actor(of: Int.self) { mailbox in
          while let number = try mailbox.receive() { trace("\(number)") }
          trace("end")
        }
        job = actor.job
        for number in 0..<3 { try actor.tell(number) }
      }
      try job.join()
      #expect(trace.all == ["0", "1", "2", "end"])
    }
  }

  @Test func `cancel fails every ask at once and drops what is in the mailbox`() async throws {
    try await onSerialQueue {
      let (dropped, gate, trace) = (Trace(), Gate(), Trace())
      let counter = ActorTests.counter(onUndelivered: { command in
        if case .add(let amount) = command { dropped("\(amount)") } else { dropped("question") }
      })
      try counter.tell(.hold(gate))
      try counter.tell(.add(1))
      let askers = (0..<2).map { number in
        co_launch { trace("\(number): \(outcome { _ = try counter.ask { .total($0) } })") }
      }
      for _ in 0..<3 { try co_yield() }
      counter.cancel()
      // Before the actor has run, and so before it has ended.
      #expect(dropped.all == ["1", "question", "question"])
      for asker in askers { try asker.join() }
      #expect(trace.all == ["0: ActorStoppedError", "1: ActorStoppedError"])
      #expect(outcome { try counter.job.join() } == "CancellationError")
      #expect(outcome { try counter.tell(.add(1)) } == "ActorStoppedError")
    }
  }

  @Test func `cancel throws in a body that waits for a message, and is not a stop`() async throws {
    try await onSerialQueue {
      for needsTimer in [false, true] {
        let (trace, end) = (Trace(), Promise<String>())
        let actor = co_actor(of: Int.self, name: "a") { mailbox in
          if needsTimer { mailbox.schedule(0, after: .seconds(1_000)) }
          while let number = try mailbox.receive() { trace("\(number)") }
          trace("committed")
        }
        let watcher = co_actor(of: ActorEnd.self) { mailbox in
          mailbox.monitor(actor) { $0 }
          while let notice = try mailbox.receive() { end.fulfill(notice.text) }
        }
        try actor.tell(1)
        try settle()
        actor.cancel()
        #expect(outcome { try actor.job.join() } == "CancellationError")
        #expect(trace.all == ["1"])
        #expect(try co_await(end) == "a cancelled")
        watcher.stop()
        try watcher.job.join()
      }
    }
  }

  @Test func `an ask that is being handled fails at once when the actor is cancelled, even if its cleanup takes long`()
    async throws
  {
    try await onSerialQueue {
      let (begun, cleanup) = (Gate(), Gate())
      let actor = co_actor(of: Reply<Int>.self) { mailbox in
        while let reply = try mailbox.receive() {
          begun.open()
          try? waitForCancellation()
          try co_shield { try cleanup.pass() }
          reply(1)
        }
      }
      let asker = co_launch { outcome { try actor.ask { $0 } } }
      try begun.pass()
      actor.cancel()
      #expect(try asker.join() == "ActorStoppedError")
      #expect(!actor.job.isFinished)
      cleanup.open()
      try? actor.job.join()
      #expect(actor.lateAnswers == 1)
    }
  }

  @Test func `an actor that is cancelled before it starts answers no question and waits for nothing`() async throws {
    try await onSerialQueue {
      for cancels in [{ $0.cancel() }, { $0.job.cancel() }] as [(ActorRef<Command>) -> Void] {
        let (counter, dropped) = (ActorTests.counter(), Trace())
        let asker = co_launch(start: .immediate) { outcome { _ = try counter.ask { .total($0) } } }
        cancels(counter)
        dropped(try asker.join())
        #expect(dropped.all == ["ActorStoppedError"])
        #expect(outcome { try counter.job.join() } == "CancellationError")
        #expect(outcome { try counter.tell(.add(1)) } == "ActorStoppedError")
      }
    }
  }

  @Test func `an actor whose job is cancelled before it starts accepts no message once the job can be joined`()
    async throws
  {
    try await onSerialQueue {
      let (seen, isDropped) = (Trace(), Gate())
      let drop: @Sendable (Int) -> Void = {
        seen("\($0)")
        if $0 == 1 { isDropped.open() }
      }
      let actor = co_actor(of: Int.self, onUndelivered: drop) { _ in }
      try actor.tell(1)
      actor.job.cancel()
      #expect(outcome { try actor.job.join() } == "CancellationError")
      #expect(outcome { try actor.tell(2) } == "ActorStoppedError")
      // After cancel, on another thread: the hook may take a lock that cancel was called under.
      try isDropped.pass()
      #expect(Set(seen.all) == ["1", "2"])
    }
  }

  @Test func `the end releases the body, and what it has captured`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let resource = Tracked("resource", trace)
      let actor = co_actor(of: Int.self) { mailbox in
        while try mailbox.receive() != nil {}
        resource.use()
      }
      actor.stop()
      try actor.job.join()
      trace("joined")
      withExtendedLifetime(actor) {}
    }
    #expect(trace.all.sorted() == ["joined", "released resource"])
  }

  @Test func `an actor whose body ends early leaves no coroutine waiting`() async throws {
    try await onSerialQueue {
      let dropped = Trace()
      let drop: @Sendable (Int) -> Void = { dropped("\($0)") }
      let actor = co_actor(of: Int.self, mailbox: .bounded(1), onUndelivered: drop) { mailbox in
        try co_delay(.zero)
        _ = try mailbox.receive()
      }
      let senders = (1...4).map { number in co_launch { outcome { try actor.tell(number) } } }
      #expect(try senders.map { try $0.join() } == ["()", "()", "ActorStoppedError", "ActorStoppedError"])
      #expect(dropped.all.sorted() == ["2", "3", "4"])
      try actor.job.join()
    }
  }

  @Test func `a failure that is never joined goes to the hook, a joined one does not`() async throws {
    let errors = UnhandledErrors()
    try await onSerialQueue {
      let unseen = co_actor(of: Int.self, name: "unseen") { mailbox in
        while try mailbox.receive() != nil { throw errors.failure("unseen") }
      }
      let seen = co_actor(of: Int.self) { mailbox in while try mailbox.receive() != nil { throw errors.failure("seen") }
      }
      try unseen.tell(1)
      try seen.tell(1)
      #expect(outcome { try seen.job.join() } == "Failure(seen)")
    }
    #expect(try await errors.jobs(count: 1).first?.contains("unseen") == true)
    #expect(try await errors.settledLabels() == ["unseen"])
  }
}
