import Dispatch
import Glibc
import Testing

@testable import Coroutine

/// An executor of another library: its jobs run as blocks of a queue.
private final class BlockExecutor: SerialExecutor {
  private let queue = DispatchQueue(label: "coroutine.tests.blocks")

  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    queue.async { job.runSynchronously(on: self.asUnownedSerialExecutor()) }
  }
}

/// An actor that no coroutine reaches without a Task.
private actor Foreign {
  private let executor = BlockExecutor()
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
}

/// An actor whose executor is asked for by code of the program's.
private actor Asked {
  private let executor: CoroutineExecutor
  private let isAsked: @Sendable () -> Void
  nonisolated var unownedExecutor: UnownedSerialExecutor {
    isAsked()
    return executor.asUnownedSerialExecutor()
  }

  init(on queue: DispatchQueue, _ isAsked: @escaping @Sendable () -> Void) {
    executor = CoroutineExecutor(queue)
    self.isAsked = isAsked
  }
}

@Suite("The cancellation of co_isolated", .timeLimit(.minutes(10)))
struct IsolatedCancellationTests {
  @Test func `on the way to the actor's queue the call throws on its own queue, and the body does not run`()
    async throws
  {
    let (home, away) = (taggedQueue("home"), taggedQueue("away"))
    let ledger = Ledger(on: away)
    let (isHeld, release) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
    away.async {
      isHeld.signal()
      release.wait()
    }
    try await onOwnThread { isHeld.wait() }
    let (called, ran) = (Flag(), Flag())
    let job = co_launch(on: home) {
      called.raise()
      let seen = outcome { try co_isolated(ledger) { _ in ran.raise() } }
      return "\(seen) \(currentTag ?? "nowhere")"
    }
    // The queue runs a block when the coroutine has left it.
    while !called.isRaised { try await onBlock(of: home) {} }
    try await onBlock(of: home) {}
    job.cancel()
    release.signal()
    #expect(try await job.value == "CancellationError home")
    #expect(!ran.isRaised)
  }

  @Test func `an actor with another executor is left only after the end of the body`() async throws {
    let home = taggedQueue("home")
    let foreign = Foreign()
    let (isInside, release) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
    let (bodyHasEnded, callHasEnded) = (Flag(), Flag())
    let job = co_launch(on: home) {
      let seen = outcome {
        try co_isolated(foreign) { _ in
          isInside.signal()
          release.wait()
          bodyHasEnded.raise()
          return 7
        }
      }
      let isAfterBody = bodyHasEnded.isRaised
      callHasEnded.raise()
      return "\(seen) \(isAfterBody) \(currentTag ?? "nowhere")"
    }
    try await onOwnThread { isInside.wait() }
    job.cancel()
    // The cancellation reaches the coroutine before this one runs, and the coroutine does not leave.
    try await onCoroutine(on: home) { try co_yield() }
    #expect(!callHasEnded.isRaised)
    release.signal()
    #expect(try await job.value == "7 true home")
  }

  /// What requests the cancellation has been handled when the coroutine begins to wait, so nothing would end the wait.
  @Test(.inWorlds, arguments: ["job", "scope", "deadline"])
  func `a call whose actor's executor cancels the coroutine throws, and the body does not run`(_ how: String) throws {
    let caller = Locked<Job<String>?>(nil)
    let opened = Locked<Scope?>(nil)
    let actor = Asked(on: taggedQueue("away")) {
      caller.current?.cancel(Oops("job"))
      opened.current?.cancel(Oops("scope"))
      if how == "deadline" { co_shield { try? co_delay(.seconds(2)) } }
    }
    let ran = Flag()
    let call: @Sendable () throws -> Void = { try co_isolated(actor) { _ in ran.raise() } }
    let job = co_launch(on: taggedQueue("home")) {
      outcome {
        switch how {
        case "scope":
          try co_scope { scope in
            opened.current = scope
            try call()
          }
        case "deadline": try co_timeout(.seconds(1), call)
        default: try call()
        }
      }
    }
    if how == "job" { caller.current = job }
    #expect(try job.join() == (how == "deadline" ? "TimeoutError" : "Oops(\(how))"))
    #expect(!ran.isRaised)
    (caller.current, opened.current) = (nil, nil)
  }

  /// The scope is inside of a shield, with which a coroutine arrives.
  ///
  /// `isNested`: the coroutine is in a body of the same actor already.
  @Test(arguments: [true, false])
  func `a body does not begin after its scope's cancellation, which is on its way`(isNested: Bool) async throws {
    let (home, away) = (taggedQueue("home"), taggedQueue("away"))
    let (near, ledger) = (Ledger(on: home), Ledger(on: away))
    let (isHome, mayCall, ran) = (Flag(), Flag(), Flag())
    let opened = Locked<Scope?>(nil)
    let call: @Sendable () throws -> Void = {
      isHome.raise()
      while !mayCall.isRaised { sched_yield() }
      try co_scope { scope in
        opened.current = scope
        try co_isolated(ledger) { _ in ran.raise() }
      }
    }
    let job = co_launch(on: home) {
      guard isNested else { return co_shield { outcome(call) } }
      return try co_isolated(ledger) { _ in
        try co_isolated(near) { _ in co_shield { outcome(call) } }
      }
    }
    while !isHome.isRaised { await Task.yield() }
    let blockedAway = try await BlockedQueue(away)
    mayCall.raise()
    while !job.record.seemsWaiting { await Task.yield() }
    // The cancellation stays in the inbox of this queue.
    let blockedHome = try await BlockedQueue(home)
    opened.current?.cancel(Oops("scope"))
    try await blockedAway.releaseAndSettle()
    try await blockedHome.releaseAndSettle()
    #expect(try await job.value == "Oops(scope)")
    #expect(!ran.isRaised)
  }
}
