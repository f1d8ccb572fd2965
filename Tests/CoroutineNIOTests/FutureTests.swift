#if NIO
import Coroutine
import CoroutineNIO
import NIOCore
import NIOPosix
import Testing

@Suite("Futures and coroutines", .timeLimit(.minutes(10)))
struct FutureTests {
  @Test func `a coroutine of any thread awaits a future's value or error`() async throws {
    try await onWorker { group in
      let loop = group.next()
      let number = try co_await(loop.submit { 42 })
      #expect(number == 42)
      #expect(throws: Oops.self) { try co_await(loop.submit { throw Oops() }) }
      let settled = try co_await(loop.makeSucceededFuture("settled"))
      #expect(settled == "settled")
    }
  }

  @Test func `a settled future does not suspend a coroutine of its loop`() async throws {
    let order = try await onLoop { loop in
      let order = Locked<[String]>([])
      co_launch { order.withLock { $0.append("another coroutine") } }
      _ = try co_await(loop.makeSucceededFuture(1))
      order.withLock { $0.append("the value") }
      try co_yield()
      return order.current
    }
    #expect(order == ["the value", "another coroutine"])
  }

  @Test func `a cancelled coroutine leaves a future, and what comes later is ignored`() async throws {
    try await onWorker { group in
      let loop = group.next()
      let promise = loop.makePromise(of: Int.self)
      let job = co_launch(on: loop) { try co_await(promise.futureResult) }
      try co_launch(on: loop) {}.join()
      job.cancel()
      #expect(throws: CancellationError.self) { try job.join() }
      promise.succeed(1)
      let late = try co_await(promise.futureResult)
      #expect(late == 1)
    }
  }

  @Test func `futures take part in combinators and selects, by themselves and as Awaitables`() async throws {
    @Sendable func wait<Output>(for awaitable: some Awaitable<Output>) throws -> Output { try co_await(awaitable) }
    try await onWorker { group in
      let loop = group.next()
      let never = loop.makePromise(of: Int.self)
      let failed: EventLoopFuture<Int> = loop.makeFailedFuture(Oops())
      let first = try co_select {
        never.futureResult.onAwait { try $0.get() }
        loop.submit { 7 }.onAwait { try $0.get() }
      }
      #expect(first == 7)
      let both = try co_select {
        never.futureResult.awaitable.onAwait { try $0.get() }
        loop.scheduleTask(in: .nanoseconds(1)) { 8 }.awaitable.onAwait { try $0.get() }
      }
      #expect(both == 8)
      // Outside of `#expect`: the compiler confuses closures in a macro's arguments with others of the function.
      let generic = try wait(for: loop.submit { 9 }.awaitable)
      #expect(generic == 9)
      let all = try co_all((1...3).map { number in loop.submit { number } })
      #expect(all == [1, 2, 3])
      #expect(throws: Oops.self) { try co_all([never.futureResult, failed]) }
      let any = try co_any([failed, never.futureResult, loop.submit { 4 }])
      #expect(any == 4)
      #expect(throws: Oops.self) { try co_race([never.futureResult, failed]) }
      let settled = try co_allSettled([failed, loop.submit { 5 }]).map { try? $0.get() }
      #expect(settled == [nil, 5])
      never.succeed(0)
    }
  }

  @Test func `a scheduled task is cancelled with the coroutine that awaits it`() async throws {
    try await onWorker { group in
      let loop = group.next()
      let hasRun = Locked(false)
      let scheduled = loop.scheduleTask(in: .hours(1)) { hasRun.withLock { $0 = true } }
      let job = co_launch(on: loop) { try co_await(scheduled) }
      try co_launch(on: loop) {}.join()
      job.cancel()
      #expect(throws: CancellationError.self) { try job.join() }
      #expect(throws: EventLoopError.cancelled) { try co_await(scheduled.futureResult) }
      #expect(!hasRun.current)
    }
  }

  @Test func `a scheduled task that loses a race is cancelled, and one that NIO cancels ends its waiters`() async throws
  {
    try await onWorker { group in
      let loop = group.next()
      let loser = loop.scheduleTask(in: .hours(1)) { 1 }
      let first = try co_race([loser.awaitable, loop.submit { 7 }.awaitable])
      #expect(first == 7)
      #expect(throws: EventLoopError.cancelled) { try co_await(loser.futureResult) }

      let cancelled = loop.scheduleTask(in: .hours(1)) { 1 }
      let waiters = [co_launch(on: loop) { try co_await(cancelled) }, co_launch { try co_await(cancelled.awaitable) }]
      try co_launch(on: loop) {}.join()
      cancelled.cancel()
      for waiter in waiters { #expect(throws: EventLoopError.cancelled) { try waiter.join() } }
    }
  }

  @Test func `a job's future gets its value, its error, and its cancellation`() async throws {
    try await withLoops { group in
      let loop = group.next()
      let three = try await co_launch { 3 }.future(on: loop).get()
      #expect(three == 3)
      await #expect(throws: Oops.self) {
        try await co_launch { () throws -> Int in throw Oops() }.future(on: loop).get()
      }
      let waiting = co_launch { try Gate().pass() }
      let future = waiting.future(on: loop)
      waiting.cancel()
      await #expect(throws: CancellationError.self) { try await future.get() }
      let lazy = co_launch(start: .lazy) { 4 }
      let isOnLoop = try await lazy.future(on: loop).map { $0 == 4 && loop.inEventLoop }.get()
      #expect(isOnLoop)
    }
  }

  @Test func `a job that outlives the loop of its future fails the future`() async throws {
    let gate = Gate()
    let job = co_launch { try gate.pass() }
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    let loop = group.next()
    let result = Locked<Result<Void, any Error>?>(nil)
    job.future(on: loop).whenComplete { value in result.withLock { $0 = value } }
    // The callback is registered by now.
    try await loop.submit {}.get()
    try await group.shutdownGracefully()
    #expect(throws: EventLoopError.shutdown) { try result.current?.get() }
    #expect(!job.isFinished)
    gate.open()
    try await job.value
  }

  @Test func `a promise is fulfilled by a coroutine, and failed by cancelling it`() async throws {
    try await withLoops { group in
      let loop = group.next()
      let promise = loop.makePromise(of: String.self)
      promise.completeWithCoroutine {
        try co_delay(.milliseconds(1))
        return "done"
      }
      let done = try await promise.futureResult.get()
      #expect(done == "done")

      let cancelled = loop.makePromise(of: Int.self)
      let job = cancelled.completeWithCoroutine {
        try Gate().pass()
        return 1
      }
      job.cancel(Oops())
      await #expect(throws: Oops.self) { try await cancelled.futureResult.get() }

      let neverBegun = loop.makePromise(of: Int.self)
      // The loop is busy here, so the body cannot have begun.
      try await loop.submit {
        neverBegun.completeWithCoroutine { 1 }.cancel(Oops())
      }.get()
      await #expect(throws: Oops.self) { try await neverBegun.futureResult.get() }
    }
  }

  @Test func `awaiting a future of a loop that is shut down ends at once`() async throws {
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    let loop = group.next()
    let settled = loop.makeSucceededFuture(1)
    try await group.shutdownGracefully()
    await #expect(throws: CoroutineError.self) { try await co_launch { try co_await(settled) }.value }
    let result = Promise<Int>()
    _ = settled.awaitable.observe { outcome in
      switch outcome {
      case .success(let value): result.fulfill(value)
      case .failure(let error): result.reject(error)
      }
    }
    await #expect(throws: CoroutineError.self) { try await result.value }
  }

  @Test func `an observer that was cancelled is not called`() async throws {
    try await withLoops { group in
      let loop = group.next()
      let promise = loop.makePromise(of: Int.self)
      let calls = Locked<[Int]>([])
      let first = promise.futureResult.awaitable.observe { _ in calls.withLock { $0.append(1) } }
      _ = promise.futureResult.awaitable.observe { _ in calls.withLock { $0.append(2) } }
      first.cancel()
      promise.succeed(0)
      _ = try await promise.futureResult.get()
      try await loop.submit {}.get()
      #expect(calls.current == [2])
    }
  }
}
#endif
