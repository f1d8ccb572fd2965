import Coroutine
import CoroutineNet
import Synchronization
import Testing

@testable import CoroutineTesting

/// Failures that nothing observes: they fail a world's run, unless the test allows them.
@Suite(.timeLimit(.minutes(10)))
struct UnhandledTests {
  struct Boom: Error {}

  /// A body for each route to the handler of unhandled errors.
  static let routes: [(name: String, body: @Sendable () throws -> Void)] = [
    (
      "a forgotten job",
      {
        co_launch { throw Boom() }
        try co_delay(.seconds(1))
      }
    ),
    (
      "a forgotten job that ends after the body",
      { co_launch { throw Boom() } }
    ),
    (
      "a child of an isolated scope",
      { try co_scope(failures: .isolated) { scope in _ = scope.launch { throw Boom() } } }
    ),
    (
      "the second failure of a scope",
      {
        try? co_scope { scope in
          scope.launch { do { try co_delay(.seconds(1)) } catch { throw Boom() } }
          // Time passes when the other one waits.
          scope.launch {
            try co_delay(.nanoseconds(1))
            throw CoroutineError.abandoned
          }
        }
      }
    ),
    (
      "an actor that nobody watches",
      {
        let actor = co_actor(of: Int.self) { _ in throw Boom() }
        try co_delay(.seconds(1))
        withExtendedLifetime(actor) {}
      }
    ),
    (
      "a promise without a handler",
      {
        _ = Promise<Void>.after(.seconds(1)).then { () throws -> Int in throw Boom() }
        try co_delay(.seconds(5))
      }
    ),
    (
      "a generator that is dropped",
      {
        let generator = Generator<Int, Never, Void> { yield in
          try yield(1)
          throw Boom()
        }
        _ = generator.next()
        _ = generator.next()
      }
    ),
    (
      "the second use of a resumer",
      {
        let _: Int = try co_suspend { resumer in
          resumer.resume(1)
          resumer.resume(2)
        }
      }
    ),
  ]

  @Test(arguments: routes.map(\.name)) func `a failure that nothing observes fails the run`(name: String) throws {
    let body = try #require(Self.routes.first { $0.name == name }).body
    let error = #expect(throws: World.UnhandledError.self) { try World().run(body) }
    #expect(error.map { "\($0)" }?.contains("unhandled error in ") == true)
    for strategy in [Exploration.Strategy.inOrder, .random(seeds: 20), .exhaustive(most: 200)] {
      let failure = try #require(explore(strategy, body).failure, "\(strategy)")
      #expect(failure.error is World.UnhandledError, "\(failure)")
      #expect(explore(.replay(failure.token), body).failure?.error is World.UnhandledError)
    }
  }

  /// As a worker that loops over jobs, if a shutdown cancels the jobs before it.
  @Test(arguments: [true, false])
  func `a job that another one's cancellation has ended is reported unless it is cancelled too`(_ isCancelled: Bool) {
    let error = outcome {
      try World().run {
        let jobs = (0..<3).map { _ in co_launch { try co_delay(.seconds(100)) } }
        let worker = co_launch { for job in jobs { try job.join() } }
        try World.current?.settle()
        for job in jobs { job.cancel() }
        try World.current?.settle()
        if isCancelled { worker.cancel() }
      }
    }
    #expect((error is World.UnhandledError) == !isCancelled, "\(String(describing: error))")
  }

  private func outcome(_ body: () throws -> Void) -> (any Error)? {
    do { try body() } catch { return error }
    return nil
  }

  @Test(arguments: routes.map(\.name)) func `a failure that the test allows goes to the handler`(name: String) async {
    await #expect(processExitsWith: .success) { [name = name as String] in
      let body = try #require(Self.routes.first { $0.name == name }).body
      let reported = Counter()
      CoroutineRuntime.unhandledErrorHandler = { _ in _ = reported.next() }
      try World().run {
        World.allowUnhandledErrors()
        try body()
      }
      #expect(reported.next() == 2)
      #expect(throws: World.UnhandledError.self) {
        try World().run {
          World.allowUnhandledErrors { $0.error is CancellationError }
          try body()
        }
      }
    }
  }

  @Test func `the body's own error comes first, and the failure before the deadlock that it leads to`() {
    struct Own: Error {}
    let forgets: @Sendable () throws -> Void = {
      co_launch { throw Boom() }
      try co_yield()
    }
    #expect(throws: Own.self) {
      try World().run {
        try forgets()
        throw Own()
      }
    }
    #expect(throws: World.UnhandledError.self) {
      try World().run {
        let channel = Channel<Int>()
        co_launch {
          try co_yield()
          throw Boom()
        }
        _ = try channel.receive()
      }
    }
  }

  @Test func `what a crashed host's coroutines throw while they unwind is no failure of the run`() throws {
    for restarts in [false, true] {
      let world = World()
      try world.run {
        world.network.host("server") {
          co_launch { do { try co_delay(.seconds(60)) } catch { throw Boom() } }
          try co_delay(.seconds(60))
        }
        try world.settle()
        if restarts { world.network.restart("server") }
      }
    }
    // Of a host that is up, it is one.
    #expect(throws: World.UnhandledError.self) {
      let world = World()
      try world.run {
        world.network.host("other") { try co_delay(.seconds(60)) }
        world.network.host("server") {
          co_launch { throw Boom() }
          try co_delay(.seconds(60))
        }
        try world.settle()
        world.network.crash("other")
        try co_delay(.seconds(1))
      }
    }
  }
}
