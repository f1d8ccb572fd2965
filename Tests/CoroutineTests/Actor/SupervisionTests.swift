import CoroutineTesting
import Testing

@testable import Coroutine

@Suite("Supervision", .timeLimit(.minutes(10)))
struct SupervisionTests {
  @Test(.inWorlds)
  func `an actor that fails is restarted: queued messages are handled, the failed one is not`() throws {
    let (supervisor, trace) = (Supervisor(), Trace())
    let actor = supervisor.tracing("a", trace)
    for order in [Order.note("1"), .fail("x"), .note("2"), .note("3")] { try actor.tell(order) }
    #expect(try actor.ask { .life($0) } == 2)
    #expect(trace.all == ["a begins 1", "a: 1", "a ends", "a begins 2", "a: 2", "a: 3"])
    #expect(supervisor.restartCount == 1)
    supervisor.stop()
    try supervisor.job.join()
    try actor.job.join()
    #expect(outcome { try actor.tell(.note("late")) } == "ActorStoppedError")
  }

  @Test(.inWorlds) func `the ask whose message failed gets ReplyDroppedError, other asks get an answer`() throws {
    enum Request: Sendable {
      case good(Reply<Int>)
      case bad(Reply<Int>)
    }
    let supervisor = Supervisor()
    let actor = supervisor.actor(of: Request.self) { mailbox in
      while let request = try mailbox.receive() {
        switch request {
        case .good(let reply): reply(1)
        case .bad: throw Oops()
        }
      }
    }
    // The actor has no next life if the supervisor is stopped first.
    World.allowUnhandledErrors { $0.error is Oops }
    let bad = co_launch { outcome { try actor.ask { .bad($0) } } }
    let good = co_launch { outcome { try actor.ask { .good($0) } } }
    #expect(try bad.join() == "ReplyDroppedError")
    #expect(try good.join() == "1")
    supervisor.stop()
    try supervisor.job.join()
  }

  @Test(
    .inWorlds,
    arguments: [
      (RestartPolicy.always, ["fail": 2, "return": 2]), (.onFailure, ["fail": 2, "return": 0]),
      (.never, ["fail": 0, "return": 0]),
    ]
  )
  func `the policy determines after which ends there is a restart`(policy: RestartPolicy, lives: [String: Int]) throws {
    for (end, order) in [("fail", Order.fail("x")), ("return", .finish)] {
      let supervisor = Supervisor()
      let actor = supervisor.tracing("a", Trace(), restart: policy)
      try actor.tell(order)
      try settle()
      let life = try? actor.ask { .life($0) }
      #expect(life ?? 0 == lives[end])
      #expect(actor.job.isFinished == (life == nil))
      if actor.job.isFinished { #expect(outcome { try actor.job.join() } == (end == "fail" ? "Oops(x)" : "()")) }
      supervisor.stop()
      try supervisor.job.join()
    }
  }

  @Test(.inWorlds) func `stopped or cancelled by its handle, an actor is not restarted`() throws {
    let (supervisor, trace) = (Supervisor(), Trace())
    for end in [{ $0.stop() }, { $0.cancel() }, { $0.job.cancel() }] as [(ActorRef<Order>) -> Void] {
      let actor = supervisor.tracing("a", trace, restart: .always)
      try settle()
      end(actor)
      _ = try? actor.job.join()
      try settle()
    }
    #expect(trace.all == Array(repeating: ["a begins 1", "a ends"], count: 3).flatMap(\.self))
    #expect(supervisor.restartCount == 0)
    supervisor.stop()
    try supervisor.job.join()
  }

  @Test(.inWorlds) func `a stopped actor that fails while it drains is restarted until it has drained`() throws {
    let (supervisor, trace) = (Supervisor(), Trace())
    let actor = supervisor.tracing("a", trace)
    for order in [Order.fail("x"), .note("1")] { try actor.tell(order) }
    actor.stop()
    try actor.job.join()
    #expect(trace.all == ["a begins 1", "a ends", "a begins 2", "a: 1", "a ends"])
    supervisor.stop()
  }

  /// The ends and beginnings after a failure of b, of a, b and c.
  private static let afterFailure: [(RestartStrategy, [String])] = [
    (.oneForOne, ["b ends", "b begins 2"]),
    (.restForOne, ["b ends", "c ends", "b begins 2", "c begins 2"]),
    (.allForOne, ["b ends", "c ends", "a ends", "a begins 2", "b begins 2", "c begins 2"]),
  ]

  @Test(.inOneWorld, arguments: afterFailure)
  func `the strategy determines which actors restart, and in which order`(strategy: RestartStrategy, expected: [String])
    throws
  {
    #expect(try Self.afterFailure(of: strategy) == expected)
  }

  // An actor that is restarted before it waits for the decision may be overtaken by those that wait.
  @Test(.inWorlds, arguments: afterFailure)
  func `in any order of steps, lives end one after the other before any begins`(
    strategy: RestartStrategy,
    expected: [String]
  ) throws {
    let seen = try Self.afterFailure(of: strategy)
    #expect(seen.prefix(expected.count / 2) + seen.dropFirst(expected.count / 2).sorted() == expected)
  }

  private static func afterFailure(of strategy: RestartStrategy) throws -> [String] {
    // There, coroutines start in the order of their launches.
    try co_switch(to: taggedQueue("serial"))
    let (supervisor, trace) = (Supervisor(strategy), Trace())
    let actors = ["a", "b", "c"].map { supervisor.tracing($0, trace) }
    try settle()
    try actors[1].tell(.fail("x"))
    for actor in actors { try actor.tell(.note("kept")) }
    try settle()
    let begun = trace.all.prefix(3)
    #expect(begun == ["a begins 1", "b begins 1", "c begins 1"])
    let seen = trace.all.dropFirst(3).filter { !$0.contains("kept") }
    #expect(trace.all.filter { $0.contains("kept") }.sorted() == ["a: kept", "b: kept", "c: kept"])
    supervisor.stop()
    try supervisor.job.join()
    return Array(seen)
  }

  @Test(.inWorlds) func `lives end in reverse order of starting, and all end before any starts`() throws {
    // There, coroutines start in the order of their launches.
    try co_switch(to: taggedQueue("serial"))
    let (supervisor, trace) = (Supervisor(.allForOne), Trace())
    let gates = (0..<3).map { _ in Gate() }
    let actors = (0..<3).map { supervisor.tracing("\($0)", trace, cleanup: gates[$0]) }
    try settle()
    gates[0].open()
    try actors[0].tell(.fail("x"))
    try settle()
    #expect(trace.all.dropFirst(3) == ["0 ends"])
    gates[1].open()
    try settle()
    #expect(trace.all.dropFirst(3) == ["0 ends"], "1 was not asked before 2 had ended")
    gates[2].open()
    try settle()
    #expect(trace.all.dropFirst(3).prefix(3) == ["0 ends", "2 ends", "1 ends"])
    // A restarted actor may overtake those that wait for the decision.
    #expect(trace.all.dropFirst(6).sorted() == ["0 begins 2", "1 begins 2", "2 begins 2"])
    supervisor.stop()
    try supervisor.job.join()
  }

  @Test(.inWorlds)
  func `a sibling that is never restarted ends with the others, and a waiting one is not affected`() throws {
    // There, coroutines start in the order of their launches.
    try co_switch(to: taggedQueue("serial"))
    let (supervisor, trace) = (Supervisor(.allForOne), Trace())
    let never = supervisor.tracing("never", trace, restart: .never)
    let failing = supervisor.tracing("failing", trace)
    let both = supervisor.tracing("both", trace)
    try settle()
    // Two at once: the second has ended before it can be asked to, or it fails in its next life.
    try failing.tell(.fail("x"))
    try both.tell(.fail("y"))
    try settle()
    #expect(never.job.isFinished)
    let life = try failing.ask { .life($0) }
    #expect(life == 2 || life == 3)
    #expect(try both.ask { .life($0) } >= 2)
    supervisor.stop()
    try supervisor.job.join()
  }

  /// Processor time of the one thread of a world, so that a loaded machine changes nothing.
  @Test func `a restart costs the same whatever the number of children, and a stop is linear`() throws {
    func times(_ children: Int, _ pause: Duration) throws -> (restart: UInt64, stop: UInt64) {
      try World(seed: 1).run {
        let supervisor = Supervisor(
          limit: RestartLimit(restarts: 1_000_000, within: .seconds(1_000_000)),
          backoff: RestartBackoff { _ in pause }
        )
        let all = (0..<children).map { _ in
          supervisor.actor(of: Int.self) { mailbox in if try mailbox.receive() != nil { throw Oops("restart") } }
        }
        try settleWorld()
        let (rounds, begin) = (100, Clock.ofThread)
        for round in 0..<rounds {
          try all[round * 37 % children].tell(1)
          try co_delay(pause + .nanoseconds(1))
        }
        #expect(supervisor.restartCount == rounds)
        let middle = Clock.ofThread
        supervisor.stop()
        try supervisor.job.join()
        return ((middle - begin) / UInt64(rounds), (Clock.ofThread - middle) / UInt64(children))
      }
    }
    for pause in [Duration.zero, .milliseconds(1)] {
      _ = try times(50, pause)
      let (few, children) = (try times(50, pause), isSanitized ? 1_000 : 5_000)
      var many = try times(children, pause)
      // The least of ten: while the host of a virtual machine runs others, the kernel counts the time to this thread.
      for _ in 1..<10 where many.restart >= 4 * few.restart + 20_000 || many.stop >= 4 * few.stop + 20_000 {
        let next = try times(children, pause)
        many = (min(many.restart, next.restart), min(many.stop, next.stop))
      }
      #expect(many.restart < 4 * few.restart + 20_000, "\(few.restart) ns with 50 children, \(many.restart) with 5,000")
      #expect(many.stop < 4 * few.stop + 20_000, "\(few.stop) ns a child with 50, \(many.stop) with 5,000")
    }
  }

  @Test(.inWorlds) func `restarts are reported`() throws {
    let told = Trace()
    let supervisor = Supervisor(onRestart: { told($0.text) })
    let actor = supervisor.tracing("a", Trace(), restart: .always)
    try actor.tell(.fail("x"))
    try actor.tell(.finish)
    try settle()
    #expect(told.all == ["a failed Oops(x)", "a stopped"])
    supervisor.cancel()
  }

  @Test(.inWorlds)
  func `a factory that throws counts as a failure, and state of one life is not seen in the next`() throws {
    let (attempts, supervisor) = (Locked(0), Supervisor(limit: RestartLimit(restarts: 5)))
    let actor = supervisor.actor(of: Order.self) { mailbox in
      let attempt = attempts.withLock {
        $0 += 1
        return $0
      }
      if attempt % 2 == 1 { throw Oops("factory") }
      var handled = 0
      while let order = try mailbox.receive() {
        handled += 1
        switch order {
        case .life(let reply): reply(handled)
        default: throw Oops()
        }
      }
    }
    #expect(try actor.ask { .life($0) } == 1)
    #expect(try actor.ask { .life($0) } == 2)
    try actor.tell(.finish)
    #expect(try actor.ask { .life($0) } == 1)
    #expect(attempts.current == 4)
    supervisor.stop()
    try supervisor.job.join()
  }
}

@Suite("Supervision: back-off", .inWorlds, .timeLimit(.minutes(10)))
struct BackoffTests {
  private var seconds: Double { worldTime / .seconds(1) }

  @Test func `the pause grows with each end, and begins anew after a long life`() throws {
    let (begins, limit) = (Locked<[Double]>([]), RestartLimit(restarts: 100, within: .seconds(1_000)))
    let supervisor = Supervisor(
      limit: limit,
      backoff: .exponential(from: .seconds(1), limit: .seconds(4), resettingAfter: .seconds(30))
    )
    let actor = supervisor.actor(of: Int.self) { mailbox in
      let count = begins.withLock { begins in
        begins.append(seconds)
        return begins.count
      }
      if count == 6 { try co_delay(.seconds(30)) }
      if count < 8 { throw Oops("life \(count)") }
      while try mailbox.receive() != nil {}
    }
    try co_delay(.seconds(60))
    #expect(begins.withLock { $0 } == [0, 1, 3, 7, 11, 15, 46, 48])
    #expect(supervisor.restartCount == 7)
    supervisor.stop()
    try supervisor.job.join()
    try actor.job.join()
  }

  @Test func `other actors are restarted meanwhile, messages wait, and a stop does not`() throws {
    let supervisor = Supervisor(
      limit: RestartLimit(restarts: 100, within: .seconds(1_000)),
      backoff: RestartBackoff { ends in .seconds(ends * 10) }
    )
    let (slow, quick) = (Trace(), Trace())
    let one = supervisor.tracing("a", slow)
    try one.tell(.fail("x"))
    try one.tell(.note("kept"))
    try co_delay(.seconds(5))
    let other = supervisor.tracing("b", quick)
    try other.tell(.fail("y"))
    try co_delay(.seconds(6))
    #expect(slow.all == ["a begins 1", "a ends", "a begins 2", "a: kept"])
    #expect(quick.all == ["b begins 1", "b ends"])
    try co_delay(.seconds(5))
    #expect(quick.all == ["b begins 1", "b ends", "b begins 2"])
    try one.tell(.fail("again"))
    try co_delay(.seconds(1))
    // It ends in its pause, and so by this failure.
    World.allowUnhandledErrors { $0.error is Oops }
    let before = seconds
    supervisor.stop()
    try supervisor.job.join()
    #expect(seconds == before)
  }
}
