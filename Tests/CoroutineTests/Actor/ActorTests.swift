import Coroutine
import Dispatch
import Testing

@Suite("Actors", .timeLimit(.minutes(10)))
struct ActorTests {
  enum Command: Sendable {
    case add(Int)
    case total(Reply<Int>)
    case fail(Oops)
    case hold(Gate)
  }

  /// The contract's example, with a gate to stop it at.
  static func counter(
    mailbox: Channel<Command>.Capacity = .unbounded,
    failsWhenFull: Bool = false,
    onUndelivered: (@Sendable (Command) -> Void)? = nil
  ) -> ActorRef<Command> {
    co_actor(
      of: Command.self,
      mailbox: mailbox,
      failsWhenFull: failsWhenFull,
      onUndelivered: onUndelivered
    ) { mailbox in
      var total = 0
      while let command = try mailbox.receive() {
        switch command {
        case .add(let amount): total += amount
        case .total(let reply): reply(total)
        case .fail(let error): throw error
        case .hold(let gate): try gate.pass()
        }
      }
    }
  }

  @Test func `tells are handled in order, and an ask answers after them`() async throws {
    try await onCoroutine {
      let counter = Self.counter()
      for amount in 1...100 { try counter.tell(.add(amount)) }
      #expect(try counter.ask(timeout: .seconds(60)) { .total($0) } == 5050)
    }
  }

  @Test func `an actor with its own queue runs there and answers other queues`() async throws {
    let queue = taggedQueue("actor's own")
    try await onSerialQueue {
      let actor = co_actor(of: Reply<String?>.self, on: queue) { mailbox in
        while let reply = try mailbox.receive() { reply(currentTag) }
      }
      #expect(try actor.ask { $0 } == "actor's own")
      #expect(currentTag == "serial")
      actor.stop()
      try actor.job.join()
    }
  }

  @Test func `messages are handled one at a time, also while a handler waits`() async throws {
    try await onSerialQueue {
      let (trace, gates) = (Trace(), (0..<3).map { _ in Gate() })
      let actor = co_actor(of: Int.self) { mailbox in
        while let number = try mailbox.receive() {
          trace("begin \(number)")
          try gates[number].pass()
          trace("end \(number)")
        }
      }
      for number in 0..<3 { try actor.tell(number) }
      for gate in gates.reversed() {
        gate.open()
        for _ in 0..<5 { try co_yield() }
      }
      #expect(trace.all == ["begin 0", "end 0", "begin 1", "end 1", "begin 2", "end 2"])
    }
  }

  @Test func `a handler that waits holds up its own mailbox only`() async throws {
    try await onSerialQueue {
      let (held, free, gate) = (Self.counter(), Self.counter(), Gate())
      try held.tell(.hold(gate))
      try held.tell(.add(1))
      try co_yield()
      #expect(try free.ask { .total($0) } == 0)
      gate.open()
      #expect(try held.ask { .total($0) } == 1)
    }
  }

  @Test func `jobs launched in the mailbox run concurrently with later messages`() async throws {
    try await onSerialQueue {
      enum Request: Sendable {
        case slow(Reply<Int>)
        case quick(Reply<Int>)
      }
      let (gate, trace) = (Gate(), Trace())
      let actor = co_actor(of: Request.self) { mailbox in
        while let request = try mailbox.receive() {
          switch request {
          case .slow(let reply):
            mailbox.launch {
              try gate.pass()
              reply(1)
            }
          case .quick(let reply): reply(2)
          }
        }
        trace("drained")
      }
      let slow = co_launch { try actor.ask { .slow($0) } }
      try co_yield()
      #expect(try actor.ask { .quick($0) } == 2)
      // A stopped actor waits for its launched jobs.
      actor.stop()
      for _ in 0..<5 { try co_yield() }
      #expect(trace.all == ["drained"])
      #expect(!actor.job.isFinished)
      gate.open()
      #expect(try slow.join() == 1)
      try actor.job.join()
    }
  }

  @Test func `the failure of a job launched in the mailbox fails the actor`() async throws {
    try await onSerialQueue {
      let actor = co_actor(of: Int.self) { mailbox in
        while let number = try mailbox.receive() { mailbox.launch { throw Oops("\(number)") } }
      }
      try actor.tell(7)
      #expect(outcome { try actor.job.join() } == "Oops(7)")
    }
  }

  @Test func `an actor may be told by a plain thread and by async code`() async throws {
    let counter = Self.counter()
    try await onOwnThread { try counter.tell(.add(1)) }
    try counter.tell(.add(2))
    #expect(counter.tryTell(.add(3)) == .sent)
    #expect(try await onCoroutine { try counter.ask { .total($0) } } == 6)
    counter.stop()
    #expect(counter.tryTell(.add(4)) == .closed)
    #expect(outcome { try counter.tell(.add(4)) } == "ActorStoppedError")
  }

  @Test func `outside a coroutine a tell that may wait and an ask throw`() async throws {
    let bounded = Self.counter(mailbox: .bounded(4))
    #expect(outcome { try bounded.tell(.add(1)) } == "notInCoroutine")
    #expect(bounded.tryTell(.add(1)) == .sent)
    #expect(outcome { _ = try bounded.ask { .total($0) } } == "notInCoroutine")
    #expect(try await onCoroutine { try bounded.ask { .total($0) } } == 1)
  }

  @Test func `a cancelled coroutine tells and asks nothing`() async throws {
    try await onSerialQueue {
      let counter = Self.counter()
      let sender = co_launch {
        try? waitForCancellation()
        return [
          outcome { try counter.tell(.add(1)) },
          outcome { _ = try counter.ask { .total($0) } },
          outcome { try co_shield { try counter.tell(.add(10)) } },
        ]
      }
      try co_yield()
      sender.cancel(Oops("why"))
      #expect(try sender.join() == ["Oops(why)", "Oops(why)", "()"])
      #expect(try counter.ask { .total($0) } == 10)
    }
  }

  @Test func `an actor has the bindings of its starter`() async throws {
    let local = CoroutineLocal(default: 0)
    try await onCoroutine {
      let actor = local.withValue(7) {
        co_actor(of: Reply<Int>.self) { mailbox in while let reply = try mailbox.receive() { reply(local.value) } }
      }
      #expect(try actor.ask { $0 } == 7)
      actor.stop()
      try actor.job.join()
    }
  }

  @Test func `an actor can return handles to itself`() async throws {
    try await onSerialQueue {
      enum Request: Sendable {
        case yourself(Reply<ActorRef<Request>>)
        case five(Reply<Int>)
      }
      let first = Locked<ActorRef<Request>?>(
        co_actor { mailbox in
          while let request = try mailbox.receive() {
            switch request {
            case .yourself(let reply): reply(mailbox.actor)
            case .five(let reply): reply(5)
            }
          }
        }
      )
      let other = try first.current!.ask { .yourself($0) }
      // The actor lives as long as any of its handles.
      first.current = nil
      #expect(try other.ask { .five($0) } == 5)
    }
  }

  @Test func `a dump shows the source of an asker's wait`() async throws {
    try await onSerialQueue {
      let (counter, gate) = (Self.counter(), Gate())
      try counter.tell(.hold(gate))
      co_launch(name: "the asker") { _ = try counter.ask { .total($0) } }
      for _ in 0..<3 { try co_yield() }
      let line = dumpOfOwnQueue().split(separator: "\n").first { $0.contains("the asker") }
      #expect(line?.contains("waiting for an answer") == true)
      gate.open()
    }
  }
}
