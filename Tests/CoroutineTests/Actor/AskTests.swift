import Dispatch
import Testing

@testable import Coroutine

@Suite("Actors: asking", .timeLimit(.minutes(10)))
struct AskTests {
  typealias Question = Reply<Int>

  /// Stores the questions in `pocket` instead of answering them.
  private static func pocketing(_ pocket: Locked<[Question]>) -> ActorRef<Question> {
    co_actor { mailbox in
      while let question = try mailbox.receive() { pocket.withLock { $0.append(question) } }
    }
  }

  @Test func `a reply may be stored and answered later, by any code`() async throws {
    let pocket = Locked<[Question]>([])
    try await onSerialQueue {
      let actor = Self.pocketing(pocket)
      let asker = co_launch { try actor.ask { $0 } }
      for _ in 0..<3 { try co_yield() }
      startThread { pocket.current[0](42) }
      #expect(try asker.join() == 42)
    }
  }

  @Test func `an ask can be failed, and answered with a result`() async throws {
    try await onCoroutine {
      enum Request: Sendable {
        case refuse(Reply<Int>)
        case result(Reply<Int>)
        case done(Reply<Void>)
      }
      let actor = co_actor(of: Request.self) { mailbox in
        while let request = try mailbox.receive() {
          switch request {
          case .refuse(let reply): reply.fail(Oops("no"))
          case .result(let reply): reply(with: .success(3))
          case .done(let reply): reply()
          }
        }
      }
      #expect(outcome { try actor.ask { .refuse($0) } } == "Oops(no)")
      #expect(try actor.ask { .result($0) } == 3)
      try actor.ask { .done($0) }
    }
  }

  @Test func `an answer given before the asker waits is not lost`() async throws {
    try await onSerialQueue {
      let actor = Self.pocketing(Locked([]))
      let answer = try actor.ask { (reply: Question) in
        reply(1)
        return reply
      }
      #expect(answer == 1)
      #expect(actor.lateAnswers == 0)
    }
  }

  @Test func `an answer that is there counts, also if the asker is cancelled before it looks`() async throws {
    let pocket = Locked<[Question]>([])
    try await onSerialQueue {
      let gate = Gate()
      let actor = co_actor(of: Question.self, mailbox: .bounded(1)) { mailbox in
        try gate.pass()
        while try mailbox.receive() != nil {}
      }
      let first = co_launch { outcome { try actor.ask { $0 } } }
      let asker = co_launch {
        try actor.ask { (reply: Question) in
          pocket.withLock { $0.append(reply) }
          return reply
        }
      }
      // The asker waits for room, gets its answer, then room, and is then cancelled.
      for _ in 0..<3 { try co_yield() }
      pocket.current[0](1)
      gate.open()
      try co_yield()
      asker.cancel()
      #expect(try asker.join() == 1)
      #expect(try first.join() == "ReplyDroppedError")
    }
  }

  @Test func `a reply released unanswered fails the ask with ReplyDroppedError, and the actor lives on`() async throws {
    try await onSerialQueue {
      let actor = co_actor(of: Question.self) { mailbox in while try mailbox.receive() != nil {} }
      #expect(outcome { try actor.ask { $0 } } == "ReplyDroppedError")
      // The actor itself continues.
      #expect(!actor.job.isFinished)
    }
  }

  @Test func `a handler that throws fails its own ask, and the actor's end fails all others`() async throws {
    let pocket = Locked<[Question]>([])
    try await onSerialQueue {
      enum Request: Sendable {
        case keep(Question)
        case fail(Question)
      }
      let actor = co_actor(of: Request.self) { mailbox in
        while let request = try mailbox.receive() {
          switch request {
          case .keep(let question): pocket.withLock { $0.append(question) }
          case .fail: throw Oops("handler")
          }
        }
      }
      let kept = co_launch { outcome { try actor.ask { .keep($0) } } }
      try co_yield()
      #expect(outcome { try actor.ask { .fail($0) } } == "ReplyDroppedError")
      // The pocket holds it, but the actor that was asked has ended.
      #expect(try kept.join() == "ActorStoppedError")
      #expect(outcome { try actor.ask { .keep($0) } } == "ActorStoppedError")
      #expect(outcome { try actor.job.join() } == "Oops(handler)")
      #expect(pocket.current.map(\.isAwaited) == [false])
    }
  }

  @Test(.inWorlds) func `a timeout throws TimeoutError, and the late answer is dropped and counted`() throws {
    let pocket = Locked<[Question]>([])
    let actor = Self.pocketing(pocket)
    #expect(outcome { try actor.ask(timeout: .seconds(5)) { $0 } } == "TimeoutError")
    let late = pocket.current[0]
    #expect(!late.isAwaited)
    #expect(actor.lateAnswers == 0)
    late(1)
    #expect(actor.lateAnswers == 1)
    #expect(outcome { try actor.ask(timeout: .zero) { $0 } } == "TimeoutError")
    #expect(pocket.current.count == 1, "without time it does not ask")
  }

  @Test(.inWorlds) func `a timeout counts the wait for room in the mailbox`() throws {
    let actor = co_actor(of: Question.self, mailbox: .bounded(1)) { mailbox in
      try co_delay(.seconds(60))
      while let question = try mailbox.receive() { question(1) }
    }
    let first = co_launch { try actor.ask { $0 } }
    try settleWorld()
    #expect(outcome { try actor.ask(timeout: .seconds(1)) { $0 } } == "TimeoutError")
    #expect(try first.join() == 1)
    #expect(actor.lateAnswers == 0, "what was not let in cannot be answered late")
  }

  @Test func `a cancelled asker throws its reason at once, and the answer is counted as late`() async throws {
    let pocket = Locked<[Question]>([])
    try await onSerialQueue {
      let actor = Self.pocketing(pocket)
      let asker = co_launch { try actor.ask { $0 } }
      for _ in 0..<3 { try co_yield() }
      asker.cancel(Oops("gone"))
      #expect(outcome { try asker.join() } == "Oops(gone)")
      pocket.current[0](1)
      #expect(actor.lateAnswers == 1)
    }
  }

  @Test func `a second answer is reported and changes nothing`() async throws {
    await #expect(processExitsWith: .success) {
      let reported = Locked<[String]>([])
      CoroutineRuntime.unhandledErrorHandler = { unhandled in
        reported.withLock { $0.append("\(type(of: unhandled.error))") }
      }
      let job = co_launch {
        let actor = co_actor(of: Reply<Int>.self) { mailbox in
          while let reply = try mailbox.receive() {
            reply(1)
            reply(2)
          }
        }
        return try (0..<2).map { _ in try actor.ask { $0 } }
      }
      let answers = try synchronously { try job.blockingWait() }
      precondition(answers == [1, 1])
      while reported.current.count < 2 {}
      precondition(reported.current == ["ReplyUsedTwiceError", "ReplyUsedTwiceError"])
    }
  }

  @Test func `an actor that asks itself gets wouldDeadlock`() async throws {
    try await onSerialQueue {
      enum Request: Sendable {
        case askYourself(Reply<String>)
        case beside(Reply<String>)
        case five(Reply<Int>)
      }
      let actor = co_actor(of: Request.self) { mailbox in
        let me = mailbox.actor
        while let request = try mailbox.receive() {
          switch request {
          case .askYourself(let reply): reply(outcome { try me.ask { .five($0) } })
          // Asking outside the mailbox is permitted.
          case .beside(let reply): mailbox.launch { reply(outcome { try me.ask { .five($0) } }) }
          case .five(let reply): reply(5)
          }
        }
      }
      #expect(try actor.ask { .askYourself($0) } == "wouldDeadlock")
      #expect(try actor.ask { .beside($0) } == "5")
      actor.stop()
      try actor.job.join()
    }
  }

  @Test func `a delegated question outlives the actor that was asked`() async throws {
    try await onSerialQueue {
      let worker = co_actor(of: Question.self) { mailbox in
        while let question = try mailbox.receive() { question(9) }
      }
      let gate = Gate()
      let front = co_actor(of: Question.self) { mailbox in
        while let question = try mailbox.receive() {
          question.delegate()
          co_launch {
            try gate.pass()
            try worker.tell(question)
          }
          return
        }
      }
      let asker = co_launch { try front.ask { $0 } }
      try co_yield()
      try front.job.join()
      #expect(!asker.isFinished)
      gate.open()
      #expect(try asker.join() == 9)
    }
  }

  @Test func `a reply answers a resumer, for promises and async code`() async throws {
    let actor = co_actor(of: Question.self) { mailbox in
      while let question = try mailbox.receive() { question(4) }
    }
    let promise = Promise<Int> { done in _ = actor.tryTell(Reply(done)) }
    #expect(try await promise.value == 4)
    actor.stop()
    let refused = Promise<Int> { done in _ = actor.tryTell(Reply(done)) }
    #expect(await asyncOutcome { try await refused.value } == "ReplyDroppedError")
  }
}

/// What docs/coming-from/coobjc.md says of actors.
@Suite("Actors: coming from coobjc", .timeLimit(.minutes(10)))
struct ActorMigrationTests {
  enum Request: Sendable {
    case status(Reply<(Int, String)>)
    case find(Int, Reply<Int>)
  }

  private static func directory() -> ActorRef<Request> {
    co_actor { mailbox in
      while let request = try mailbox.receive() {
        switch request {
        case .status(let reply): reply((200, "fine"))
        case .find(let number, let reply): number < 0 ? reply.fail(Oops("\(number)")) : reply(number * 2)
        }
      }
    }
  }

  @Test func `several values are a tuple`() async throws {
    try await onCoroutine {
      let (code, text) = try Self.directory().ask { .status($0) }
      #expect((code, text) == (200, "fine"))
    }
  }

  @Test func `several asks at once are jobs, all or settled, in the order of the input`() async throws {
    try await onCoroutine {
      let directory = Self.directory()
      let jobs = [3, -1, 2].map { number in co_launch { try directory.ask { .find(number, $0) } } }
      #expect(try co_allSettled(jobs).map { CoroutineTests.outcome($0) } == ["6", "Oops(-1)", "4"])
      #expect(outcome { try co_all(jobs) } == "Oops(-1)")
      #expect(try co_all([5, 6].map { number in co_launch { try directory.ask { .find(number, $0) } } }) == [10, 12])
      directory.stop()
      try directory.job.join()
    }
  }
}
