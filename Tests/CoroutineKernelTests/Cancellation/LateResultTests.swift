import CoroutineTesting
import Testing

@testable import Coroutine

/// The table of the article CancellationAndTime.md, "A result that comes too late": dropped, or kept for somebody else.
@Suite("A result that comes too late", .timeLimit(.minutes(10)))
struct LateResultTests {
  final class Token: Sendable {
    private let onRelease: @Sendable () -> Void
    init(_ onRelease: @escaping @Sendable () -> Void) { self.onRelease = onRelease }
    deinit { onRelease() }
  }

  /// A wait for a token that comes when the wait has been given up.
  struct Late {
    /// Waits in a coroutine, which is then given up.
    let wait: @Sendable () throws -> Void
    /// Provides the token that was waited for.
    let deliver: (Token) throws -> Void
    /// Gets the token all the same; nil if it is dropped.
    var fetch: (() throws -> Token?)?
  }

  struct Row: Sendable, CustomTestStringConvertible {
    let testDescription: String
    let make: @Sendable () throws -> Late
    init(_ name: String, _ make: @escaping @Sendable () throws -> Late) { (testDescription, self.make) = (name, make) }
  }

  enum Way: CaseIterable { case cancel, deadline, scope }

  static let dropped = [
    Row("co_suspend") {
      let held = Locked<Resumer<Token>?>(nil)
      return Late {
        _ = try co_suspend { (done: Resumer<Token>) in held.current = done }
      } deliver: {
        held.current?.resume($0)
        held.current = nil
      }
    },
    Row("co_await of async code") {
      let held = Locked<CheckedContinuation<Token, Never>?>(nil)
      return Late {
        _ = try co_await { await withCheckedContinuation { held.current = $0 } }
      } deliver: {
        held.current?.resume(returning: $0)
        held.current = nil
      }
    },
    Row("co_await of a promise, by its last consumer") {
      let (promise, resolver) = Promise<Token>.pending(onCancel: {})
      return Late {
        _ = try co_await(promise)
      } deliver: {
        resolver.resume($0)
      }
    },
    Row("co_race of promises, by their last consumer") {
      let (promise, resolver) = Promise<Token>.pending(onCancel: {})
      return Late {
        _ = try co_race([promise, Promise<Token>()])
      } deliver: {
        resolver.resume($0)
      }
    },
    Row("ask") {
      let replies = Channel<Reply<Token>>(.unbounded)
      let actor = co_actor { (mailbox: Mailbox<Reply<Token>>) in
        while let reply = try mailbox.receive() { try replies.send(reply) }
      }
      return Late {
        _ = try actor.ask { $0 }
      } deliver: { token in
        let reply = try replies.receive()
        #expect(reply?.isAwaited == false)
        reply?(token)
        #expect(actor.lateAnswers == 1)
        actor.stop()
      }
    },
    Row("the last caller of a flight") {
      let (flights, held) = (SingleFlight<Int, Token>(), Locked<Resumer<Token>?>(nil))
      return Late {
        // A body that does not end at a cancellation.
        _ = try flights.run(1) { try co_shield { try co_suspend { (done: Resumer<Token>) in held.current = done } } }
      } deliver: { token in
        held.current?.resume(token)
        held.current = nil
        try settleWorld()
        // A flight keeps no result: this is another one.
        #expect(throws: Oops("another flight")) { try flights.run(1) { throw Oops("another flight") } }
      }
    },
  ]

  static let kept = [
    Row("join") {
      let source = Promise<Token>()
      let job = co_launch { try co_await(source) }
      return Late {
        _ = try job.join()
      } deliver: {
        source.fulfill($0)
      } fetch: {
        try job.join()
      }
    },
    Row("co_await of a job") {
      let source = Promise<Token>()
      let job = co_launch { try co_await(source) }
      return Late {
        _ = try co_await(job)
      } deliver: {
        source.fulfill($0)
      } fetch: {
        try job.join()
      }
    },
    Row("co_all, co_any, co_race and co_allSettled of jobs") {
      let source = Promise<Token>()
      let job = co_launch { try co_await(source) }
      return Late {
        try co_scope { scope in
          scope.launch { _ = try co_all([job]) }
          scope.launch { _ = try co_any([job]) }
          scope.launch { _ = try co_race([job]) }
          scope.launch { _ = try co_allSettled([job]) }
        }
      } deliver: {
        source.fulfill($0)
      } fetch: {
        try job.join()
      }
    },
    Row("co_await of a promise that other code settles") {
      let promise = Promise<Token>()
      return Late {
        _ = try co_await(promise)
      } deliver: {
        promise.fulfill($0)
      } fetch: {
        try co_await(promise)
      }
    },
    Row("co_await of uncancelled") {
      let (promise, resolver) = Promise<Token>.pending(onCancel: {})
      return Late {
        _ = try co_await(promise.uncancelled)
      } deliver: {
        resolver.resume($0)
      } fetch: {
        try co_await(promise)
      }
    },
    Row("receive") {
      let channel = Channel<Token>(.bounded(1))
      return Late {
        _ = try channel.receive()
      } deliver: {
        try channel.send($0)
      } fetch: {
        try channel.receive()
      }
    },
    Row("receive from a channel without a buffer") {
      let channel = Channel<Token>(.rendezvous)
      return Late {
        _ = try channel.receive()
      } deliver: { token in
        co_launch { try channel.send(token) }
      } fetch: {
        try channel.receive()
      }
    },
    Row("forEach") {
      let channel = Channel<Token>(.bounded(1))
      return Late {
        try channel.forEach { _ in }
      } deliver: {
        try channel.send($0)
      } fetch: {
        try channel.receive()
      }
    },
    Row("for in a channel") {
      let channel = Channel<Token>(.bounded(1))
      return Late {
        while try channel.receive() != nil {}
        try co_checkCancelled()
      } deliver: {
        try channel.send($0)
      } fetch: {
        try channel.receive()
      }
    },
    Row("a generator's step, whose body waits") {
      let source = Promise<Token>()
      return Late {
        for _ in co_sequence(of: Token.self, { yield in try yield(try co_await(source)) }) {}
        try co_checkCancelled()
      } deliver: {
        source.fulfill($0)
      } fetch: {
        try co_await(source)
      }
    },
    Row("receiveAll") {
      let channel = Channel<Token>(.bounded(1))
      return Late {
        _ = try channel.receiveAll()
      } deliver: {
        try channel.send($0)
      } fetch: {
        try channel.receive()
      }
    },
    Row("receive(count:)") {
      let channel = Channel<Token>(.bounded(1))
      return Late {
        _ = try channel.receive(count: 3)
      } deliver: {
        try channel.send($0)
      } fetch: {
        try channel.receive()
      }
    },
    Row("co_select over a channel") {
      let channel = Channel<Token>(.bounded(1))
      return Late {
        try co_select { channel.onReceive { _ in } }
      } deliver: {
        try channel.send($0)
      } fetch: {
        try channel.receive()
      }
    },
    Row("co_select over a promise") {
      let promise = Promise<Token>()
      return Late {
        try co_select { promise.onAwait { _ in } }
      } deliver: {
        promise.fulfill($0)
      } fetch: {
        try co_await(promise)
      }
    },
    Row("a waiter of Once") {
      let (once, source) = (Once<Token>(), Promise<Token>())
      co_launch { _ = try once.run { try co_await(source) } }
      try settleWorld()
      return Late {
        _ = try once.run { throw Oops("a second body") }
      } deliver: {
        source.fulfill($0)
      } fetch: {
        once.value
      }
    },
    Row("a caller of a flight that has another one") {
      let (flights, source) = (SingleFlight<Int, Token>(), Promise<Token>())
      let other = co_launch { try flights.run(1) { try co_await(source) } }
      try settleWorld()
      return Late {
        _ = try flights.run(1) { throw Oops("a second body") }
      } deliver: {
        source.fulfill($0)
      } fetch: {
        try other.join()
      }
    },
  ]

  /// Lets a coroutine wait, gives its wait up, and delivers a token; returns what that left in `trace`.
  private static func deliverLate(_ late: Late, _ way: Way, _ trace: Trace) throws {
    let wait = late.wait
    let scope = Promise<Void>()
    let job = co_launch {
      switch way {
      case .cancel: try wait()
      case .deadline: try co_timeout(.seconds(1)) { try wait() }
      case .scope:
        try co_scope { children in
          children.launch { try wait() }
          try co_await(scope)
          throw Oops("scope")
        }
      }
    }
    try settleWorld()
    switch way {
    case .cancel: job.cancel()
    case .deadline: try co_delay(.seconds(1))
    case .scope: scope.fulfill(())
    }
    let seen = outcome { try job.join() }
    #expect(["CancellationError", "TimeoutError", "Oops(scope)"].contains(seen))
    try late.deliver(Token { trace("released") })
    try settleWorld()
  }

  @Test(.inWorlds, arguments: dropped, Way.allCases) func `is released, and nobody is told`(_ row: Row, _ way: Way)
    throws
  {
    let trace = Trace()
    let late = try row.make()
    try Self.deliverLate(late, way, trace)
    #expect(trace.all == ["released"])
  }

  @Test(.inWorlds, arguments: kept, Way.allCases) func `stays where it is`(_ row: Row, _ way: Way) throws {
    let trace = Trace()
    let late = try row.make()
    try Self.deliverLate(late, way, trace)
    #expect(trace.all.isEmpty)
    try #expect(late.fetch?() != nil)
  }

  @Test(.inWorlds) func `the value of a scope's body is released if the scope is cancelled before its last child ends`()
    throws
  {
    let trace = Trace()
    let hasReturned = Gate()
    let job = co_launch {
      try co_scope { scope in
        scope.launch { try waitForCancellation() }
        hasReturned.open()
        return Token { trace("released") }
      }
    }
    try hasReturned.pass()
    try settleWorld()
    #expect(trace.all.isEmpty)
    job.cancel()
    #expect(throws: CancellationError.self) { try job.join() }
    #expect(trace.all == ["released"])
  }

  @Test(.inWorlds) func `a body that returns despite its deadline has succeeded`() throws {
    for limit in [Duration.seconds(1), .seconds(3)] {
      let value = try co_timeout(limit) {
        try co_shield { try co_delay(.seconds(2)) }
        return 7
      }
      #expect(value == 7)
    }
    // A wait in the body meets the deadline, and the value is released.
    let trace = Trace()
    #expect(throws: TimeoutError.self) {
      try co_timeout(.seconds(1)) {
        let token = Token { trace("released") }
        try co_delay(.seconds(2))
        return token
      }
    }
    #expect(trace.all == ["released"])
  }

  @Test(.inWorlds, arguments: [Channel<Token>.Capacity.rendezvous, .bounded(1)])
  func `what a send or a select that was given up offered goes to onUndelivered or stays with the caller`(
    _ capacity: Channel<Token>.Capacity
  ) throws {
    let trace = Trace()
    let channel = Channel<Token>(capacity) { _ in trace("undelivered") }
    _ = channel.trySend(Token {})
    #expect(throws: TimeoutError.self) { try co_timeout(.seconds(1)) { try channel.send(Token {}) } }
    #expect(trace.all == ["undelivered"])
    let token = Token { trace("released") }
    #expect(throws: TimeoutError.self) {
      try co_timeout(.seconds(1)) { try co_select { channel.onSend(token) {} } }
    }
    // Nobody has taken it over, so nobody gives it back.
    #expect(trace.all == ["undelivered"])
    withExtendedLifetime(token) {}
  }

  @Test(.inWorlds, arguments: [true, false])
  func `a message that comes after the actor's wait was given up stays in the mailbox`(_ byReceive: Bool) throws {
    let trace = Trace()
    let actor = co_actor { (mailbox: Mailbox<Int>) in
      let seen = outcome {
        try co_timeout(.seconds(1)) {
          if byReceive { _ = try mailbox.receive() } else { try mailbox.forEach { trace("early \($0)") } }
        }
      }
      trace(seen)
      try co_delay(.seconds(2))
      trace("\(try mailbox.receive() ?? 0)")
    }
    try co_delay(.seconds(2))
    try actor.tell(7)
    try actor.job.join()
    #expect(trace.all == ["TimeoutError", "7"])
  }

  @Test(.inWorlds) func `a call that waits to the end returns a late value`() throws {
    let held = Locked<CheckedContinuation<Int, Never>?>(nil)
    let job = co_launch { try co_awaitToEnd { await withCheckedContinuation { held.current = $0 } } }
    try settleWorld()
    job.cancel()
    try settleWorld()
    #expect(!job.isFinished)
    held.current?.resume(returning: 7)
    #expect(try job.join() == 7)
  }
}
