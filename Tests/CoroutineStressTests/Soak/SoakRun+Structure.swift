import Coroutine
import Dispatch

extension SoakRun {
  private func make(_ plan: SoakFlow) -> SoakRun {
    let state = world.flow()
    if plan.start == .lazy { state.enter(.flows("the start of a lazy job") { false }) }
    return SoakRun(world, state, plan, inheritedQueue: queue.with { $0 })
  }

  /// Launches a flow that only the conductor waits for.
  @discardableResult
  func launch(_ plan: SoakFlow) -> Job<Int> {
    let run = make(plan)
    return Self.launch(run)
  }

  static func launch(_ run: SoakRun) -> Job<Int> {
    let queue = run.plan.queue.map { run.world.queues[$0] }
    let stack = run.plan.hasSmallStack ? StackSize.bytes(256 * 1_024) : .standard
    let job = co_launch(on: queue, name: "flow \(run.flow.number)", stack: stack, start: run.plan.start) {
      try run.body()
    }
    return run.track(job)
  }

  private func track(_ job: Job<Int>) -> Job<Int> {
    flow.job.with { $0 = job }
    return job.finally { [flow] in flow.end() }
  }

  private func launch(_ plan: SoakFlow, in scope: Scope) -> SoakRun {
    let run = make(plan)
    let queue = plan.queue.map { world.queues[$0] }
    _ = run.track(scope.launch(on: queue, name: "flow \(run.flow.number)") { try run.body() })
    return run
  }

  func join(_ index: Int) throws {
    guard let job = world.root(index) else { return }
    try wait("join", isPlain: false, until: job.isFinished) { try job.join() }
  }

  /// Marks the implicit wait at the end of a scope, which begins when its body returns.
  ///
  /// A deadline does not end it, because children may need other flows to end, but it cancels them.
  private func endScope(_ children: [SoakRun]) {
    let (states, deadline) = (children.map(\.flow), deadline)
    flow.enter(
      .flows("a scope's children") {
        let left = states.filter { $0.endCount == 0 }
        let isLate = deadline.map { ContinuousClock.now > $0 } ?? false
        return left.isEmpty || isLate && left.contains { $0.job.with { $0?.isCancelled } == false }
      }
    )
  }

  func scope(_ children: [SoakFlow], _ end: SoakScopeEnd) throws {
    var runs: [SoakRun] = []
    defer {
      flow.leave()
      for run in runs {
        world.findings.expect(
          run.flow.job.with { ($0 as? Job<Int>)?.isFinished } == true,
          "a scope left a child behind"
        )
      }
    }
    try co_scope { scope in
      defer { endScope(runs) }
      for child in children { runs.append(launch(child, in: scope)) }
      switch end {
      case .waits: break
      case .cancels: scope.cancel(SoakFault())
      case .fails: throw SoakCause()
      }
    }
  }

  func supervise(_ children: [SoakFlow]) throws {
    var runs: [SoakRun] = []
    defer { flow.leave() }
    try co_scope(failures: .isolated) { scope in
      defer { endScope(runs) }
      for child in children { runs.append(launch(child, in: scope)) }
    }
  }

  /// Waits for detached children together.
  func gather(_ how: SoakCombination, _ children: [SoakFlow]) throws {
    let jobs = children.map { child in
      var child = child
      // co_all and the other combinators start a lazy job only when they reach it.
      child.start = .queued
      return launch(child)
    }
    let some: @Sendable () -> Bool = { jobs.contains { $0.isFinished } }
    let every: @Sendable () -> Bool = { jobs.allSatisfy { $0.isFinished } }
    switch how {
    case .all: try wait("co_all", isPlain: false, until: every()) { _ = try co_all(jobs) }
    case .allSettled: try wait("co_allSettled", isPlain: false, until: every()) { _ = try co_allSettled(jobs) }
    case .any: try wait("co_any", isPlain: false, until: every()) { _ = try co_any(jobs) }
    case .race: try wait("co_race", isPlain: false, until: some()) { _ = try co_race(jobs) }
    }
  }

  func group(_ children: [SoakFlow]) throws {
    let (group, left) = (WaitGroup(), Census())
    for child in children {
      group.add()
      left.change()
      var child = child
      if child.start == .lazy { child.start = .queued }
      launch(child).finally {
        left.change(by: -1)
        group.done()
      }
    }
    try wait("WaitGroup.wait", until: left.now == 0) { try group.wait() }
    world.findings.expect(left.now == 0, "a wait group let its waiter go with \(left.now) missing")
  }

  func timeout(_ micros: Int, _ inner: [SoakAction]) throws {
    let (clock, duration) = (ContinuousClock(), Duration.microseconds(micros))
    let start = clock.now
    // A cancelled flow passes on the error of an inner deadline. In the body, this one shows as a CancellationError.
    var isOfInner = false
    do {
      try co_timeout(duration) {
        do {
          try timed(micros).run(inner)
        } catch let error as TimeoutError {
          isOfInner = true
          throw error
        }
      }
    } catch let error as TimeoutError {
      world.findings.expect(isOfInner || clock.now - start >= duration, "a deadline of \(duration) ended too early")
      throw error
    }
  }

  func delay(_ micros: Int) throws {
    let (clock, duration) = (ContinuousClock(), Duration.microseconds(micros))
    let start = clock.now
    try outside("co_delay") { try co_delay(duration) }
    world.findings.expect(clock.now - start >= duration, "a delay of \(duration) ended too early")
  }

  func shield(_ inner: [SoakAction]) throws {
    try co_shield {
      world.findings.expect(!co_isCancelled, "a shield shows a cancellation from outside")
      try run(inner)
    }
  }

  func bind(_ inner: [SoakAction]) throws {
    try SoakLocals.$flow.withValue(-2) {
      try SoakLocals.coroutine.withValue(-2) {
        try co_yield()
        world.findings.expect(SoakLocals.flow == -2 && SoakLocals.coroutine.value == -2, "an inner binding is lost")
      }
    }
    try run(inner)
  }
}
