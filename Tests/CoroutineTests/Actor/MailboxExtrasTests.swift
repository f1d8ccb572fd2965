import Testing

@testable import Coroutine

@Suite("Actors: timers, stash, behaviours", .timeLimit(.minutes(10)))
struct MailboxExtrasTests {
  enum Message: Sendable {
    case text(String)
    case start(Duration, String)
    case repeatEvery(Duration, String)
    case callOff
    case busy(Duration)
  }

  /// Writes what it receives, and when, into `trace`.
  private static func clock(_ trace: Trace, _ now: @escaping @Sendable () -> Int) -> ActorRef<Message> {
    co_actor { mailbox in
      var timers: [ActorTimer] = []
      while let message = try mailbox.receive() {
        switch message {
        case .text(let text): trace("\(now()) \(text)")
        case .start(let delay, let text): timers.append(mailbox.schedule(.text(text), after: delay))
        case .repeatEvery(let interval, let text): timers.append(mailbox.schedule(.text(text), every: interval))
        case .callOff:
          trace("\(now()) off \(timers.map { mailbox.cancel($0) })")
          timers = []
        case .busy(let duration): try co_delay(duration)
        }
      }
      trace("end")
    }
  }

  /// Runs `body` in a world with an actor; returns its trace, which has seconds since the start.
  private func timed(_ body: (ActorRef<Message>) throws -> Void) throws -> [String] {
    let trace = Trace()
    let actor = Self.clock(trace) { Int(worldTime / .seconds(1)) }
    try body(actor)
    actor.stop()
    try actor.job.join()
    return trace.all
  }

  @Test(.inWorlds) func `timers fire in the order of their times, between other messages`() throws {
    let heard = try timed { actor in
      try actor.tell(.start(.seconds(3), "c"))
      try actor.tell(.start(.seconds(1), "a"))
      try actor.tell(.start(.zero, "now"))
      try actor.tell(.text("told"))
      try co_delay(.seconds(2))
      try actor.tell(.text("between"))
      try co_delay(.seconds(2))
    }
    #expect(heard == ["0 now", "0 told", "1 a", "2 between", "3 c", "end"])
  }

  @Test(.inWorlds) func `a timer that is always due starves no message, and keeps no stopped actor alive`() throws {
    let trace = Trace()
    let actor = co_actor(of: Message.self) { mailbox in
      mailbox.schedule(.text("tick"), every: .seconds(1))
      while let message = try mailbox.receive() {
        if case .text(let text) = message { trace(text) }
        try co_delay(.milliseconds(1_500))
      }
    }
    for text in ["a", "b", "c"] { try actor.tell(.text(text)) }
    try co_delay(.seconds(10))
    #expect(["a", "b", "c"].allSatisfy { trace.all.contains($0) }, "\(trace.all)")
    actor.stop()
    try co_timeout(.seconds(10)) { try actor.job.join() }
    let count = trace.all.count
    try co_delay(.seconds(10))
    #expect(trace.all.count == count)
  }

  @Test(.inWorlds)
  func `a repeating timer keeps its rhythm, and the ticks that a busy actor has missed count once`() throws {
    let heard = try timed { actor in
      try actor.tell(.repeatEvery(.seconds(2), "tick"))
      try co_delay(.seconds(5))
      try actor.tell(.busy(.seconds(6)))
      try co_delay(.seconds(8))
    }
    #expect(heard == ["2 tick", "4 tick", "11 tick", "12 tick", "end"])
  }

  @Test(.inWorlds)
  func `a cancelled timer delivers nothing, also if it was due; cancelling it again returns false`() throws {
    let heard = try timed { actor in
      try actor.tell(.start(.seconds(1), "never"))
      try actor.tell(.repeatEvery(.seconds(3), "once"))
      try co_delay(.seconds(4))
      try actor.tell(.callOff)
      try co_delay(.seconds(10))
    }
    #expect(heard == ["1 never", "3 once", "4 off [false, true]", "end"])
  }

  @Test(.inWorlds) func `a stopped actor gets no timer after its last message`() throws {
    let heard = try timed { actor in
      try actor.tell(.start(.seconds(1), "too late"))
      try co_yield()
    }
    #expect(heard == ["end"])
  }

  @Test(.inWorlds) func `a cancelled actor throws its reason from the wait for a timer`() throws {
    let actor = co_actor(of: Int.self) { mailbox in
      mailbox.schedule(1, after: .seconds(60))
      while try mailbox.receive() != nil {}
    }
    try settle()
    actor.job.cancel(Oops("enough"))
    #expect(outcome { try actor.job.join() } == "Oops(enough)")
  }

  @Test(.inWorlds) func `an outer deadline is distinguished from a running timer`() throws {
    let result = Promise<String>()
    let actor = co_actor(of: Int.self) { mailbox in
      mailbox.schedule(1, after: .seconds(60))
      result.fulfill(outcome { try co_timeout(.seconds(1)) { _ = try mailbox.receive() } })
      _ = try mailbox.receive()
    }
    #expect(try co_await(result) == "TimeoutError")
    try actor.job.join()
  }

  @Test func `stashed messages are received next, in order, before later messages`() async throws {
    try await onSerialQueue {
      let trace = Trace()
      let actor = co_actor(of: Int.self) { mailbox in
        var isOpen = false
        while let number = try mailbox.receive() {
          if number == 0 {
            isOpen = true
            mailbox.unstash()
            #expect(mailbox.stashCount == 0)
          } else if isOpen {
            trace("\(number)")
          } else {
            try mailbox.stash(number)
          }
        }
      }
      for number in [1, 2, 3, 0, 4] { try actor.tell(number) }
      actor.stop()
      try actor.job.join()
      #expect(trace.all == ["1", "2", "3", "4"])
    }
  }

  @Test(.inWorlds) func `an actor that waits for a timer ends when it is cancelled with a TimeoutError`() throws {
    let actor = co_actor(of: Int.self) { mailbox in
      mailbox.schedule(0, after: .seconds(1_000))
      while try mailbox.receive() != nil {}
    }
    try settle()
    actor.job.cancel(TimeoutError())
    #expect(outcome { try actor.job.join() } == "TimeoutError")
  }

  @Test func `a full stash throws and leaves the message to its owner`() async throws {
    try await onSerialQueue {
      let dropped = Trace()
      let drop: @Sendable (Int) -> Void = { dropped("\($0)") }
      let actor = co_actor(of: Int.self, onUndelivered: drop) { mailbox in
        while let number = try mailbox.receive() { try mailbox.stash(number, limit: 2) }
      }
      for number in 1...3 { try actor.tell(number) }
      #expect(outcome { try actor.job.join() } == "MailboxStashFullError")
      #expect(dropped.all == ["1", "2"], "what is left in the stash was accepted and will not be handled")
    }
  }

  @Test func `a stashed ask fails when the actor is cancelled`() async throws {
    try await onSerialQueue {
      let actor = co_actor(of: Reply<Int>.self) { mailbox in
        while let reply = try mailbox.receive() { try mailbox.stash(reply) }
      }
      let asker = co_launch { outcome { try actor.ask { $0 } } }
      try settle()
      actor.cancel()
      #expect(try asker.join() == "ActorStoppedError")
    }
  }

  @Test(.inWorlds)
  func `after a restart the next life receives stashed messages first, and gets no old timer`() throws {
    let (trace, lives, supervisor) = (Trace(), Locked(0), Supervisor())
    let actor = supervisor.actor(of: Int.self) { mailbox in
      let life = lives.withLock {
        $0 += 1
        return $0
      }
      if life == 1 { mailbox.schedule(99, after: .seconds(1)) }
      while let number = try mailbox.receive() {
        if life > 1 {
          trace("\(number)")
        } else if number == 0 {
          throw Oops()
        } else {
          try mailbox.stash(number)
        }
      }
    }
    for number in [1, 2, 0, 3] { try actor.tell(number) }
    try co_delay(.seconds(5))
    supervisor.stop()
    try supervisor.job.join()
    #expect(trace.all == ["1", "2", "3"])
  }

  @Test func `behaviours take turns`() async throws {
    try await onSerialQueue {
      let trace = Trace()
      @Sendable func counting(_ count: Int) -> Behavior<String> {
        Behavior { word in
          trace("\(count) \(word)")
          switch word {
          case "up": return .become(counting(count + 1))
          case "stop": return .stop
          default: return .same
          }
        }
      }
      let actor = co_actor(of: String.self) { mailbox in
        try mailbox.run(counting(0))
        trace("over")
      }
      for word in ["x", "up", "up", "x", "stop", "unheard"] { try actor.tell(word) }
      try actor.job.join()
      #expect(trace.all == ["0 x", "0 up", "1 up", "2 x", "2 stop", "over"])
    }
  }
}
