import CoroutineTesting
import Dispatch
import Glibc
import Testing

@testable import Coroutine

/// What becomes of a value of blocking code that comes when nobody waits for it any more.
@Suite("Undelivered results of blocking code", .timeLimit(.minutes(10)))
struct BlockingUndeliveredTests {
  /// A way to give up a call whose body has begun; returns the outcome of the coroutine that has called.
  struct Route: Sendable, CustomTestStringConvertible {
    let testDescription: String
    let giveUp: @Sendable (_ call: @escaping @Sendable () throws -> Int, _ begun: Arrivals) async throws -> String

    init(
      _ name: String,
      _ giveUp: @escaping @Sendable (@escaping @Sendable () throws -> Int, Arrivals) async throws -> String
    ) {
      testDescription = name
      self.giveUp = giveUp
    }
  }

  static let routes = [
    Route("cancel") { call, begun in
      let job = co_launch { try call() }
      try await begun.wait(for: 1)
      job.cancel()
      return await asyncOutcome { try await job.value }
    },
    Route("a deadline") { call, begun in
      // A deadline that passes before the body has begun withdraws the body.
      try await onCoroutine {
        var seen = ""
        while begun.count == 0 { seen = outcome { try co_timeout(.milliseconds(3)) { try call() } } }
        return seen
      }
    },
    Route("a scope that fails") { call, begun in
      let hasBegun = Gate()
      let job = co_launch {
        try co_scope { scope in
          _ = scope.launch { try call() }
          try hasBegun.pass()
          throw Oops("scope")
        }
      }
      try await begun.wait(for: 1)
      hasBegun.open()
      return await asyncOutcome { try await job.value }
    },
    Route("a race") { call, begun in
      let winner = Promise<Int>()
      let job = co_launch {
        let loser = co_launch { try call() }
        let won = try co_race([loser.uncancelled, winner])
        loser.cancel()
        _ = try? loser.join()
        return won
      }
      try await begun.wait(for: 1)
      winner.fulfill(1)
      return await asyncOutcome { try await job.value }
    },
    Route("a Task that awaits the coroutine") { call, begun in
      let task = Task { try await co_launch { try call() }.value }
      try await begun.wait(for: 1)
      task.cancel()
      return await asyncOutcome { try await task.value }
    },
  ]

  // A deadline of real time is one of the routes; the body runs on a real thread.
  @Test(.tags(.realClock), arguments: routes)
  func `a value that comes after the wait was given up goes to onUndelivered, once`(_ route: Route) async throws {
    let (begun, end, given) = (Arrivals(), DispatchSemaphore(value: 0), Arrivals())
    let values = Locked<[Int]>([])
    let giveBack: @Sendable (Int) -> Void = { value in
      values.withLock { $0.append(value) }
      given.arrive()
    }
    let call: @Sendable () throws -> Int = {
      try co_blocking(onUndelivered: giveBack) {
        begun.arrive()
        end.wait()
        return 7
      }
    }
    let seen = try await route.giveUp(call, begun)
    #expect(["CancellationError", "TimeoutError", "Oops(scope)", "1"].contains(seen))
    #expect(values.current.isEmpty)
    end.signal()
    try await given.wait(for: 1)
    #expect(values.current == [7])
  }

  @Test func `a value that is delivered does not go to onUndelivered, which is released`() async throws {
    let (given, released) = (Flag(), Arrivals())
    let job = co_launch { [captured = Tracked { released.arrive() }] in
      try co_blocking(onUndelivered: { (_: Int) in
        captured.use()
        given.raise()
      }) { 7 }
    }
    #expect(try await job.value == 7)
    try await released.wait(for: 1)
    #expect(!given.isRaised)
  }

  @Test func `a body that has not begun gives nothing to either, and is released`() async throws {
    let watched = WatchedPool(limit: 1)
    let end = DispatchSemaphore(value: 0)
    let blocked = try await watched.block(1, running: 1, until: end)
    let trace = Trace()
    let jobs = try await watched.submit(1) { _ in
      let (handler, body) = (Tracked("handler", trace), Tracked("body", trace))
      try watched.pool.run(onUndelivered: { _ in
        trace("undelivered")
        handler.use()
      }) {
        trace("ran")
        body.use()
      }
    }
    jobs[0].cancel()
    #expect(await asyncOutcome { try await jobs[0].value } == "CancellationError")
    #expect(Set(trace.all) == ["released body", "released handler"])
    try await blocked.end(by: end)
    try await watched.idled.wait(for: 1)
    #expect(Set(trace.all) == ["released body", "released handler"])
  }

  @Test func `onUndelivered runs on the body's thread, with the caller's bindings, and may wait`() async throws {
    let local = CoroutineLocal(default: "none")
    let (begun, end) = (Arrivals(), DispatchSemaphore(value: 0))
    let seen = Promise<[String]>()
    let job = co_launch {
      try local.withValue("caller") {
        try TaskBound.$value.withValue("task") {
          try co_blocking(onUndelivered: { (thread: UInt) in
            let inner = outcome { try co_launch { try co_blocking { local.value } }.blockingWait() }
            seen.fulfill(["\(thread == pthread_self())", local.value, TaskBound.value, inner])
          }) {
            begun.arrive()
            end.wait()
            return UInt(pthread_self())
          }
        }
      }
    }
    try await begun.wait(for: 1)
    job.cancel()
    #expect(await asyncOutcome { _ = try await job.value } == "CancellationError")
    end.signal()
    #expect(try await seen.value == ["true", "caller", "task", "caller"])
    // The thread has left the bindings.
    for _ in 0..<8 {
      #expect(try await onCoroutine { try co_blocking { local.value + TaskBound.value } } == "nonenone")
    }
  }

  @Test func `an error that comes too late goes to nobody`() async throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("late")
    let (begun, end, released) = (Arrivals(), DispatchSemaphore(value: 0), Arrivals())
    let job = co_launch { [captured = Tracked { released.arrive() }] in
      try co_blocking(onUndelivered: { (_: Int) in Issue.record("an error is no value") }) {
        captured.use()
        begun.arrive()
        end.wait()
        throw failure
      }
    }
    try await begun.wait(for: 1)
    job.cancel(Oops("reason"))
    #expect(await asyncOutcome { try await job.value } == "Oops(reason)")
    end.signal()
    try await released.wait(for: 1)
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `an error in time goes to the caller`() async throws {
    let seen = try await onCoroutine {
      outcome {
        try co_blocking(onUndelivered: { (_: Int) in Issue.record("an error is no value") }) { throw Oops("in time") }
      }
    }
    #expect(seen == "Oops(in time)")
  }

  @Test func `the value of a body that cancels its coroutine has one receiver`() async throws {
    let given = Arrivals()
    let own = Locked<Job<Int>?>(nil)
    let job = co_launch(start: .lazy) {
      try co_blocking(onUndelivered: { (_: Int) in given.arrive() }) {
        own.current?.cancel()
        return 7
      }
    }
    own.withLock { $0 = job }
    let seen = await asyncOutcome { try await job.value }
    // The value may come before the coroutine has begun to wait: then it is there, and the coroutine gets it.
    if seen == "7" {
      #expect(given.count == 0)
    } else {
      #expect(seen == "CancellationError")
      try await given.wait(for: 1)
    }
    own.withLock { $0 = nil }
  }

  @Test(.inWorlds) func `in a world, too, a value has one receiver`() throws {
    let (returned, given, got) = (Locked(0), Locked(0), Locked(0))
    let job = co_launch {
      _ = try co_blocking(onUndelivered: { (_: Int) in given.withLock { $0 += 1 } }) {
        returned.withLock { $0 += 1 }
        return 7
      }
      got.withLock { $0 += 1 }
    }
    co_launch { job.cancel() }
    _ = try? job.join()
    #expect(given.current + got.current == returned.current)
  }

  @Test func `no descriptor is lost`() async throws {
    let (begun, end, closed) = (Arrivals(), DispatchSemaphore(value: 0), Arrivals())
    let opened = Locked<[Int32]>([])
    let count = 20
    let jobs = (0..<count).map { _ in
      co_launch {
        try co_blocking(onUndelivered: { (number: Int32) in
          #expect(close(number) == 0)
          closed.arrive()
        }) {
          begun.arrive()
          end.wait()
          let number = open("/dev/null", O_RDONLY | O_CLOEXEC)
          opened.withLock { $0.append(number) }
          return number
        }
      }
    }
    try await begun.wait(for: count)
    for job in jobs { job.cancel() }
    for job in jobs { #expect(await asyncOutcome { try await job.value } == "CancellationError") }
    for _ in jobs { end.signal() }
    try await closed.wait(for: count)
    #expect(opened.current.count == count && opened.current.allSatisfy { $0 >= 0 })
  }
}

private enum TaskBound {
  @TaskLocal static var value = "none"
}
