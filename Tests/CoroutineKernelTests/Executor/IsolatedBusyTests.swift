import CoroutineTesting
import Dispatch
import Synchronization
import Testing

@testable import Coroutine

/// An executor of another library: its jobs run as blocks of a queue.
private final class BlockExecutor: SerialExecutor {
  private let queue = DispatchQueue(label: "coroutine.tests.busy.blocks")

  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    queue.async { job.runSynchronously(on: self.asUnownedSerialExecutor()) }
  }
}

/// An actor that other code can occupy.
private protocol Occupied: Actor {}

extension Occupied {
  /// Blocks the actor's thread until `release` is signalled.
  func occupy(_ isOccupied: DispatchSemaphore, _ release: DispatchSemaphore) {
    isOccupied.signal()
    release.wait()
  }

  /// Does nothing, after what the actor was asked before.
  func visit() {}
}

private actor Plain: Occupied {}

private actor Foreign: Occupied {
  private let executor = BlockExecutor()
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
}

extension MainActor: Occupied {}

/// The actors that a coroutine reaches by a Task.
enum TaskActor: CaseIterable {
  case plain, foreign, main

  fileprivate func make() -> any Occupied {
    switch self {
    case .plain: Plain()
    case .foreign: Foreign()
    case .main: MainActor.shared
    }
  }
}

/// The ways in which a call is given up.
enum Ending: CaseIterable {
  case deadline, jobCancel, scopeCancel, before

  /// Makes the call, in a coroutine, so that it ends early.
  ///
  /// `isOver` is fulfilled when the coroutine is about to call.
  func giveUp(_ call: @escaping @Sendable () throws -> Void) throws {
    switch self {
    case .deadline: try co_timeout(.milliseconds(20), call)
    case .jobCancel: try call()
    case .scopeCancel:
      try co_scope { scope in
        let canceller = scope.launch(on: DispatchQueue(label: "coroutine.tests.canceller")) {
          try co_delay(.milliseconds(5))
          scope.cancel(Oops("scope"))
        }
        defer { canceller.cancel() }
        try call()
      }
    case .before:
      try co_scope { scope in
        scope.cancel(Oops("scope"))
        try call()
      }
    }
  }

  var error: String {
    switch self {
    case .deadline: "TimeoutError"
    case .jobCancel: "Oops(job)"
    case .scopeCancel, .before: "Oops(scope)"
    }
  }
}

@Suite("co_isolated on an actor that is busy", .timeLimit(.minutes(10)))
struct IsolatedBusyTests {
  /// Real time: no world makes the thread of an actor block.
  @Test(.tags(.realClock), arguments: TaskActor.allCases, Ending.allCases)
  func `the call that is given up returns although the actor stays busy, and the body never runs`(
    _ kind: TaskActor,
    _ ending: Ending
  ) async throws {
    let actor = kind.make()
    for home in [taggedQueue("home"), nil] {
      let release = try await occupy(actor)
      let (isCalling, ran) = (Flag(), Flag())
      let job = co_launch(on: home) {
        let seen = outcome {
          try ending.giveUp {
            isCalling.raise()
            try call(actor) { ran.raise() }
          }
        }
        return "\(seen) \(currentTag ?? "worker")"
      }
      while !isCalling.isRaised { await Task.yield() }
      if ending == .jobCancel { job.cancel(Oops("job")) }
      // The actor is released only after that.
      #expect(try await job.value == "\(ending.error) \(home == nil ? "worker" : "home")")
      release.signal()
      await actor.visit()
      #expect(!ran.isRaised)
    }
  }

  @Test(.tags(.realClock), arguments: Ending.allCases)
  func `the call on an actor of a queue that is blocked returns too`(_ ending: Ending) async throws {
    for home in [taggedQueue("home"), nil] {
      let away = taggedQueue("away")
      let ledger = Ledger(on: away)
      let (isCalling, ran) = (Flag(), Flag())
      let job = co_launch(on: home) {
        let seen = outcome {
          try ending.giveUp {
            isCalling.raise()
            try co_isolated(ledger) { _ in ran.raise() }
          }
        }
        return "\(seen) \(currentTag ?? "worker")"
      }
      let blocked = try await BlockedQueue(away)
      while !isCalling.isRaised { await Task.yield() }
      if ending == .jobCancel { job.cancel(Oops("job")) }
      let seen = try await job.value
      // The call may come before the queue is blocked.
      let isEarly = ran.isRaised
      #expect(isEarly || seen == "\(ending.error) \(home == nil ? "worker" : "home")")
      try await blocked.releaseAndSettle()
      #expect(isEarly || !ran.isRaised)
      // Others have the actor now.
      try await onCoroutine { try co_isolated(ledger) { $0.balance += 1 } }
      #expect(await ledger.add(1) == 2)
    }
  }

  @Test(.tags(.realClock), arguments: Ending.allCases)
  func `the call on an actor of a loop that is blocked returns too`(_ ending: Ending) async throws {
    let loop = Loop()
    let host = HostedScheduler(loop)
    let ledger = HostedLedger(host)
    for home in [taggedQueue("home"), nil] {
      let (isBlocked, release) = (Gate(), DispatchSemaphore(value: 0))
      loop.execute {
        isBlocked.open()
        release.wait()
      }
      try await isBlocked.value
      let (isCalling, ran) = (Flag(), Flag())
      let job = co_launch(on: home) {
        let seen = outcome {
          try ending.giveUp {
            isCalling.raise()
            try co_isolated(ledger) { _ in ran.raise() }
          }
        }
        return "\(seen) \(currentTag ?? "worker")"
      }
      while !isCalling.isRaised { await Task.yield() }
      if ending == .jobCancel { job.cancel(Oops("job")) }
      #expect(try await job.value == "\(ending.error) \(home == nil ? "worker" : "home")")
      release.signal()
      // Others have the actor now, and the loop has come to all that was queued before.
      try await onCoroutine { try co_isolated(ledger) { $0.balance += 1 } }
      #expect(!ran.isRaised)
    }
  }

  @Test(arguments: TaskActor.allCases)
  func `a body that has begun is waited for, and its result is the call's`(_ kind: TaskActor) async throws {
    let actor = kind.make()
    let (isInside, release, hasEnded) = (Flag(), DispatchSemaphore(value: 0), Flag())
    let job = co_launch(on: taggedQueue("home")) {
      try call(actor) {
        isInside.raise()
        release.wait()
        hasEnded.raise()
        return 7
      }
    }
    while !isInside.isRaised { await Task.yield() }
    job.cancel()
    release.signal()
    #expect(try await job.value == 7)
    #expect(hasEnded.isRaised)
  }

  @Test(arguments: TaskActor.allCases)
  func `no body begins once cancel has returned, also if the coroutine's own queue is blocked`(
    _ kind: TaskActor
  ) async throws {
    let (actor, home) = (kind.make(), taggedQueue("home"))
    let releaseActor = try await occupy(actor)
    let (isCalling, ran) = (Flag(), Flag())
    let job = co_launch(on: home) {
      isCalling.raise()
      return outcome { try call(actor) { ran.raise() } }
    }
    while !isCalling.isRaised { await Task.yield() }
    // The queue runs a block when the coroutine has left it.
    let (isBlocked, releaseHome) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
    home.async {
      isBlocked.signal()
      releaseHome.wait()
    }
    try await onOwnThread { isBlocked.wait() }
    job.cancel()
    releaseActor.signal()
    await actor.visit()
    #expect(!ran.isRaised)
    releaseHome.signal()
    #expect(try await job.value == "CancellationError")
    #expect(!ran.isRaised)
  }

  @Test(.tags(.realClock)) func `what the body uses is free when the call has returned, although the Task is late`()
    async throws
  {
    let actor = Plain()
    let release = try await occupy(actor)
    let released = Gate()
    let job = co_launch {
      let held = Tracked { released.open() }
      return outcome { try co_timeout(.milliseconds(5)) { try co_isolated(actor) { _ in held.use() } } }
    }
    #expect(try await job.value == "TimeoutError")
    try await onCoroutine { try released.pass() }
    release.signal()
  }

  @Test(.tags(.realClock)) func `a shield hides the cancellation, and a deadline inside of it counts`() async throws {
    let actor = Plain()
    let release = try await occupy(actor)
    let (isCalling, ran) = (Flag(), Flag())
    let inner = co_launch { () -> String in
      co_shield {
        isCalling.raise()
        return outcome { try co_timeout(.milliseconds(20)) { try co_isolated(actor) { _ in ran.raise() } } }
      }
    }
    let outer = co_launch { co_shield { outcome { try co_isolated(actor) { _ in 7 } } } }
    while !isCalling.isRaised { await Task.yield() }
    inner.cancel()
    outer.cancel()
    let seen = try await inner.value
    release.signal()
    #expect(seen == "TimeoutError")
    // Cancelled before it began, or inside of the shield.
    #expect(["7", "CancellationError"].contains(await asyncOutcome { try await outer.value }))
    await actor.visit()
    #expect(!ran.isRaised)
  }

  private func occupy(_ actor: any Occupied) async throws -> DispatchSemaphore {
    let (isOccupied, release) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
    // On threads of Dispatch, because the cooperative pool has few.
    let executor = CoroutineExecutor(DispatchQueue(label: "coroutine.tests.occupier"))
    Task(executorPreference: executor) { await actor.occupy(isOccupied, release) }
    try await onOwnThread { isOccupied.wait() }
    return release
  }
}

private func call<R: Sendable>(_ actor: some Actor, _ body: @Sendable () throws -> R) throws -> R {
  try co_isolated(actor) { _ in try body() }
}

// MARK: Every order

/// An executor whose jobs a test runs one by one.
private final class Stepped: SerialExecutor {
  private let jobs = Locked<[UnownedJob]>([])

  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    jobs.withLock { $0.append(job) }
  }

  /// Runs the first job; returns false if there is none.
  func step() -> Bool {
    guard let job = jobs.withLock({ $0.isEmpty ? nil : $0.removeFirst() }) else { return false }
    job.runSynchronously(on: asUnownedSerialExecutor())
    return true
  }
}

private actor SteppedActor {
  private let executor: Stepped
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
  init(_ executor: Stepped) { self.executor = executor }
}

@Suite("co_isolated against cancellation, in every order", .timeLimit(.minutes(10)))
struct IsolatedOrdersTests {
  @Test(arguments: [Ending.deadline, .jobCancel, .scopeCancel])
  func `either the body runs and its value is returned, or it never runs and the call throws`(
    _ ending: Ending
  ) throws {
    let outcomes = Locked<Set<String>>([])
    let found = explore(.exhaustive(preemptions: isSanitized ? 1 : 2)) {
      let executor = Stepped()
      let actor = SteppedActor(executor)
      let runs = Locked(0)
      let caller = co_launch(on: taggedQueue("caller")) {
        try ending.giveUp {
          _ = try co_isolated(actor) { _ in
            runs.withLock { $0 += 1 }
            co_point()
          }
        }
      }
      if ending == .jobCancel { co_launch { caller.cancel(Oops("job")) } }
      let seen = Locked("")
      let joiner = co_launch { seen.current = outcome { try caller.join() } }
      // The actor gets its turn early, or when the call ends.
      let early = co_launch { _ = executor.step() }
      if ending == .deadline { try co_delay(.milliseconds(20)) }
      if ending == .scopeCancel { try co_delay(.milliseconds(5)) }
      co_point()
      _ = executor.step()
      try joiner.join()
      try early.join()
      while executor.step() {}
      let ran = runs.current
      let text = "\(ran) \(seen.current)"
      outcomes.withLock { _ = $0.insert(text) }
      // A scope or deadline that has passed while the body runs does not change the result.
      guard ["1 ()", "0 \(ending.error)"].contains(text) else { throw Oops(text) }
    }
    #expect(found.failure == nil, "\(found.failure.map { "\($0)" } ?? "")")
    #expect(outcomes.current == ["1 ()", "0 \(ending.error)"])
  }
}
