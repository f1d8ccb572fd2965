import Coroutine
import Testing

/// Old spellings, used without a warning: the compiler warns of a deprecated name, and a call by a protocol names none.
private protocol OldSpellings {
  func run() throws
}

private struct OldTypes: OldSpellings {
  @available(*, deprecated)
  func run() throws {
    let removed = Flag()
    let observation = Observation { removed.raise() }
    observation.cancel()
    #expect(removed.isRaised)
    let generator = Generator<Int, Never, String> { yield in
      try yield(1)
      return "end"
    }
    let steps: [Step<Int, String>] = [try generator.step(), try generator.step()]
    #expect(steps == [.yielded(1), .returned("end")])
    let either: Either<Int, String> = try co_await(Promise<Int>() ||| Promise.value("text"))
    #expect(either == .second("text"))
    for losers in [Losers.leftRunning, .cancelled] {
      #expect(try co_await(Promise.all([.value(1), .value(2)], losers: losers)) == [1, 2])
    }
    let elements: GeneratorAsyncElements<Int, Never, String> = generator.asyncElements()
    let handler: @Sendable (Stall) -> Void = { _ in }
    let iterator: ProgressPromise<Int>.Iterator.Type = ProgressPromise<Int>.Iterator.self
    withExtendedLifetime((elements, handler, iterator)) {}
  }
}

private struct OldCalls: OldSpellings {
  @available(*, deprecated)
  func run() throws {
    let group = WaitGroup()
    try group.join()
    #expect(try Promise.value(1).awaitValue() == 1)
    #expect(try co_supervise { scope in try scope.launch { 2 }.join() } == 2)
    #expect(throws: CoroutineError.self) { try co_wait(readable: -1) }
    #expect(throws: CoroutineError.self) { try co_wait(writable: -1, afterEAGAIN: true) }
    let guarantee = Guarantee.value(3)
    #expect(try co_await(guarantee.thenTry { try Result<Int, any Error>.success($0 + 1).get() }) == 4)
    #expect(try co_await(guarantee.timeout(.seconds(60))) == 3)
    #expect(ActorGroup<Int>().count == 0)
    let received = Trace()
    let actor = co_actor(of: String.self) { mailbox in
      let timer = mailbox.schedule(every: .seconds(60), "later")
      mailbox.schedule(after: .zero, "now")
      received(try mailbox.receive() ?? "nothing")
      #expect(mailbox.cancel(timer))
    }
    try actor.job.join()
    #expect(received.all == ["now"])
    // What is called by the protocol is callable on the type as well.
    let seen = Trace()
    let observation = Promise.value(5).observe { seen(outcome($0)) }
    observation.cancel()
    let job = co_launch { try waitForCancellation() }
    job.cancelAwaited()
    #expect(seen.all == ["5"] && job.isCancelled)
  }
}

private struct OldBlockingCalls: OldSpellings {
  @available(*, deprecated)
  func run() throws {
    #expect(try co_launch { 1 }.wait() == 1)
    #expect(try Promise.value(2).wait() == 2)
  }
}

private struct OldHandler: OldSpellings {
  @available(*, deprecated)
  func run() throws {
    let heard = Trace()
    CoroutineRuntime.unhandledErrorHandler = { heard("first \($0.origin)") }
    let first = CoroutineRuntime.onUnhandledError
    CoroutineRuntime.onUnhandledError = { error, job in
      first(error, job)
      heard("\(name(of: error)) in \(job)")
    }
    CoroutineRuntime.unhandledErrorHandler(try unhandled(name: "doomed"))
    #expect(heard.all.count == 2)
    #expect(heard.all[0].hasPrefix("first \"doomed\" (id "))
    #expect(heard.all[1].hasPrefix("Oops(lost) in \"doomed\" (id "))
  }

  /// Returns what the handler receives for a coroutine that fails, and puts the handler back.
  private func unhandled(name: String) throws -> CoroutineRuntime.UnhandledError {
    let handler = CoroutineRuntime.unhandledErrorHandler
    defer { CoroutineRuntime.unhandledErrorHandler = handler }
    let received = Promise<CoroutineRuntime.UnhandledError>()
    CoroutineRuntime.unhandledErrorHandler = { received.fulfill($0) }
    co_launch(name: name) { () throws -> Void in throw Oops("lost") }
    return try received.blockingWait()
  }
}

@Suite("Old spellings", .timeLimit(.minutes(5)))
struct OldNamesTests {
  @Test func `of types mean the new ones`() async throws {
    try await onCoroutine { try (OldTypes() as any OldSpellings).run() }
  }

  @Test func `of calls do what the new ones do`() async throws {
    try await onCoroutine { try (OldCalls() as any OldSpellings).run() }
  }

  @Test func `of calls that block a thread do what the new ones do`() throws {
    try (OldBlockingCalls() as any OldSpellings).run()
  }

  @Test func `of the handler of unobserved failures gets and sets the new one`() async {
    // In a separate process, because the handler is the process's.
    await #expect(processExitsWith: .success) { try (OldHandler() as any OldSpellings).run() }
  }
}
