import Coroutine
import Testing

@Suite("Actors: bounds of the mailbox", .timeLimit(.minutes(10)))
struct ActorMailboxTests {
  /// An actor that writes its messages into a trace once `gate` is open.
  private static func writer(
    _ trace: Trace,
    _ gate: Gate,
    _ mailbox: Channel<Int>.Capacity,
    failsWhenFull: Bool = false,
    _ dropped: Trace = Trace()
  ) -> ActorRef<Int> {
    let drop: @Sendable (Int) -> Void = { dropped("\($0)") }
    return co_actor(mailbox: mailbox, failsWhenFull: failsWhenFull, onUndelivered: drop) { mailbox in
      try gate.pass()
      try mailbox.forEach { trace("\($0)") }
    }
  }

  @Test func `a bounded mailbox makes senders wait, first come, first served`() async throws {
    try await onSerialQueue {
      let (trace, gate, row) = (Trace(), Gate(), Queueing())
      let actor = Self.writer(trace, gate, .bounded(2))
      for number in 0..<5 { try row.enqueue("\(number)") { try actor.tell(number) } }
      #expect(row.trace.all == ["0", "1"])
      #expect(actor.tryTell(9) == .full)
      gate.open()
      try row.settle()
      #expect(trace.all == ["0", "1", "2", "3", "4"])
      #expect(row.trace.all == ["0", "1", "2", "3", "4"])
    }
  }

  @Test func `a rendezvous mailbox hands messages over`() async throws {
    try await onSerialQueue {
      let (trace, gate, row) = (Trace(), Gate(), Queueing())
      let actor = Self.writer(trace, gate, .rendezvous)
      try row.enqueue("0") { try actor.tell(0) }
      #expect(row.trace.all == [])
      gate.open()
      try row.settle()
      #expect(trace.all == ["0"])
      #expect(row.trace.all == ["0"])
    }
  }

  @Test func `a mailbox that fails when full throws MailboxFullError, anywhere`() async throws {
    let (trace, gate, dropped) = (Trace(), Gate(), Trace())
    let actor = Self.writer(trace, gate, .bounded(1), failsWhenFull: true, dropped)
    try actor.tell(1)
    #expect(outcome { try actor.tell(2) } == "MailboxFullError")
    try await onCoroutine {
      #expect(outcome { try actor.tell(3) } == "MailboxFullError")
      let started = Promise<Void>()
      let cancelled = co_launch {
        started.fulfill(())
        try? waitForCancellation()
        return outcome { try actor.tell(4) }
      }
      try co_await(started)
      cancelled.cancel()
      #expect(try cancelled.join() == "CancellationError")
      gate.open()
      actor.stop()
      try actor.job.join()
      #expect(outcome { try actor.tell(5) } == "ActorStoppedError")
    }
    #expect(outcome { try actor.tell(6) } == "ActorStoppedError")
    #expect(trace.all == ["1"])
    #expect(dropped.all == ["2", "3", "4", "5", "6"])
  }

  @Test func `forEach returns when the actor was stopped and has handled all, and throws when it is cancelled`()
    async throws
  {
    let seen = try await onSerialQueue {
      let trace = Trace()
      func worker(_ name: String) -> ActorRef<Int> {
        co_actor { mailbox in
          try mailbox.forEach { trace("\(name) \($0)") }
          trace("\(name) has handled all")
        }
      }
      let (stopped, cancelled) = (worker("stopped"), worker("cancelled"))
      for actor in [stopped, cancelled] { try actor.tell(1) }
      try co_yield()
      stopped.stop()
      cancelled.cancel()
      trace(outcome { try stopped.job.join() })
      trace(outcome { try cancelled.job.join() })
      return trace.all.sorted()
    }
    #expect(seen == ["()", "CancellationError", "cancelled 1", "stopped 1", "stopped has handled all"])
  }

  @Test(.inWorlds) func `forEach throws what its body throws, and a supervisor begins a new life`() throws {
    let seen = try onWorldQueue {
      let trace = Trace()
      let supervisor = Supervisor()
      let actor = supervisor.actor(of: Int.self, name: "worker") { mailbox in
        trace("begins")
        try mailbox.forEach { number in
          if number == 0 { throw Oops() }
          trace("\(number)")
        }
      }
      for number in [1, 0, 2] { try actor.tell(number) }
      actor.stop()
      try actor.job.join()
      return trace.all
    }
    #expect(seen == ["begins", "1", "begins", "2"])
  }

  @Test func `dropping mailboxes drop the oldest or the newest, and say so`() async throws {
    try await onSerialQueue {
      for (mailbox, kept, lost) in [
        (Channel<Int>.Capacity.dropOldest(2), ["2", "3"], ["0", "1"]), (.dropNewest(2), ["0", "1"], ["2", "3"]),
      ] {
        let (trace, gate, dropped) = (Trace(), Gate(), Trace())
        let actor = Self.writer(trace, gate, mailbox, dropped)
        for number in 0..<4 { try actor.tell(number) }
        #expect(dropped.all == lost)
        gate.open()
        actor.stop()
        try actor.job.join()
        #expect(trace.all == kept)
      }
    }
  }

  @Test func `messages that a thread offers in vain are dropped like those of a coroutine`() async throws {
    let (gate, dropped) = (Gate(), Trace())
    let bounded = Self.writer(Trace(), gate, .bounded(1), dropped)
    let unbounded = Self.writer(Trace(), gate, .unbounded, dropped)
    #expect(outcome { try bounded.tell(1) } == "notInCoroutine")
    unbounded.stop()
    #expect(outcome { try unbounded.tell(2) } == "ActorStoppedError")
    try await onCoroutine { #expect(outcome { try unbounded.tell(3) } == "ActorStoppedError") }
    #expect(unbounded.tryTell(4) == .closed)
    gate.open()
    #expect(dropped.all == ["1", "2", "3"])
  }

  @Test func `a message dropped by a thread reaches the hook as well`() async throws {
    let (trace, gate, dropped) = (Trace(), Gate(), Trace())
    let actor = Self.writer(trace, gate, .dropNewest(1), dropped)
    for number in 0..<3 { try actor.tell(number) }
    #expect(dropped.all == ["1", "2"])
    #expect(actor.tryTell(3) == .full)
    gate.open()
    actor.stop()
    try await actor.job.value
    #expect(trace.all == ["0"])
    #expect(dropped.all == ["1", "2"], "what was refused stays the caller's")
  }

  @Test func `an ask that is dropped fails with ReplyDroppedError`() async throws {
    try await onSerialQueue {
      let gate = Gate()
      let actor = co_actor(of: Reply<Int>.self, mailbox: .dropOldest(1)) { mailbox in
        try gate.pass()
        try mailbox.forEach { reply in reply(1) }
      }
      let row = Queueing()
      for label in ["first", "second"] {
        try row.enqueue(label) { _ = try actor.ask { $0 } }
      }
      gate.open()
      try row.settle()
      #expect(row.trace.all == ["first: ReplyDroppedError", "second"])
    }
  }

  @Test func `an actor that tells itself is refused if it would wait for itself`() async throws {
    try await onSerialQueue {
      let (result, dropped) = (Promise<[String]>(), Trace())
      let drop: @Sendable (Int) -> Void = { dropped("\($0)") }
      let actor = co_actor(of: Int.self, mailbox: .bounded(1), onUndelivered: drop) { mailbox in
        let me = mailbox.actor
        result.fulfill([outcome { try me.tell(1) }, outcome { try me.tell(2) }])
        _ = try mailbox.receive()
      }
      #expect(try co_await(result) == ["()", "wouldDeadlock"])
      #expect(dropped.all == ["2"])
      try actor.job.join()
    }
  }

  @Test func `a sender that is cancelled while it waits sends nothing`() async throws {
    try await onSerialQueue {
      let (trace, gate, row, dropped) = (Trace(), Gate(), Queueing(), Trace())
      let actor = Self.writer(trace, gate, .bounded(1), dropped)
      try row.enqueue("0") { try actor.tell(0) }
      let job = try row.enqueue("1") { try actor.tell(1) }
      try row.enqueue("2") { try actor.tell(2) }
      job.cancel(Oops("enough"))
      try row.settle()
      #expect(dropped.all == ["1"])
      gate.open()
      try row.settle()
      #expect(trace.all == ["0", "2"])
      #expect(row.trace.all == ["0", "1: Oops(enough)", "2"])
    }
  }

  @Test func `messages of one sender keep their order, whatever other senders do`() async throws {
    try await onCoroutine {
      let last = Locked<[Int: Int]>([:])
      let actor = co_actor(of: (sender: Int, number: Int).self, mailbox: .bounded(3)) { mailbox in
        while let (sender, number) = try mailbox.receive() {
          last.withLock {
            #expect(number == ($0[sender] ?? -1) + 1)
            $0[sender] = number
          }
        }
      }
      try co_scope { scope in
        for sender in 0..<8 {
          scope.launch { for number in 0..<200 { try actor.tell((sender, number)) } }
        }
      }
      actor.stop()
      try actor.job.join()
      #expect(last.current.values.allSatisfy { $0 == 199 } && last.current.count == 8)
    }
  }
}
