import Coroutine
import Dispatch
import Glibc

/// Runs one program from a plain thread, looks for lost wake-ups while it runs, and takes stock at its end.
///
/// The conductor polls. Three cases:
/// - Some flow makes steps: the conductor does nothing.
/// - Every flow waits for another flow, and none of these waits could end: the program has deadlocked by its own fault.
///   The conductor performs the next nudge, and after the last one cancels every flow.
/// - No flow makes a step for `patience`, although a wait could end: a wake-up is lost. The conductor reports the waits
///   and a dump.
///
/// A nudge at the wrong moment is one more event of the program, so nothing depends on the interval of polling.
struct SoakConductor {
  struct Outcome {
    var steps = 0
    var findings: [String] = []
    /// The process still holds what did not end; no further program can be judged in it.
    var isHung = false
  }

  let patience: Duration
  private let clock = ContinuousClock()

  init(patience: Duration) { self.patience = patience }

  /// `live` is the number of coroutines of other parts of the process.
  func run(_ program: SoakProgram, otherThan live: Int) -> Outcome {
    let world = SoakWorld(program)
    launch(world)
    var outcome = Outcome()
    if !conduct(world) { outcome.isHung = true }
    outcome.steps = world.flows.with { $0.reduce(0) { $0 + $1.stepCount } }
    if !outcome.isHung { outcome.isHung = !takeStock(world, otherThan: live) }
    outcome.findings = world.findings.all
    if outcome.isHung { outcome.findings.append(CoroutineRuntime.dump()) }
    return outcome
  }

  private func launch(_ world: SoakWorld) {
    for (index, capacity) in world.program.actors.enumerated() {
      let actor = SoakRun.startActor(world, capacity, index)
      world.actors.with { $0.append(actor) }
    }
    for plan in world.program.roots {
      var plan = plan
      // Outside a coroutine there is no carrier to start on.
      if plan.start == .immediate { plan.start = .queued }
      let state = world.flow()
      if plan.start == .lazy { state.enter(.flows("the start of a lazy job") { false }) }
      let job = SoakRun.launch(SoakRun(world, state, plan, inheritedQueue: nil))
      world.rootJobs.with { $0.append(job) }
    }
  }

  private struct View {
    var live = 0
    var steps = 0
    /// The number of flows that run, or whose wait ends by itself.
    var moving = 0
    /// The waits that could end.
    var ready: [String] = []
    var waits: [String] = []
  }

  private func look(_ world: SoakWorld) -> View {
    var view = View()
    let flows = world.flows.with { $0 }
    for flow in flows {
      view.steps += flow.stepCount
      switch flow.wait.with({ $0 }) {
      case .over: continue
      case .running:
        view.moving += 1
        view.waits.append("flow \(flow.number) runs")
      case .outside(let what):
        view.moving += 1
        view.waits.append("flow \(flow.number): \(what), which ends by itself")
      case .flows(let what, let ready):
        view.waits.append("flow \(flow.number): \(what)")
        if ready() { view.ready.append("flow \(flow.number): \(what)") }
      }
      view.live += 1
    }
    // A flow may have launched another one and ended since the list was copied.
    view.live += world.flows.with { $0.count } - flows.count
    return view
  }

  /// Returns when every flow has ended, or false when the program hangs.
  private func conduct(_ world: SoakWorld) -> Bool {
    var nudges = world.program.nudges[...]
    var (steps, live) = (-1, -1)
    var changed = clock.now
    while true {
      let view = look(world)
      if view.live == 0 { return true }
      if view.steps != steps || view.live != live {
        (steps, live, changed) = (view.steps, view.live, clock.now)
      } else if view.moving == 0, view.ready.isEmpty {
        if let nudge = nudges.popFirst() { perform(nudge, world) } else { end(world) }
      }
      if clock.now - changed > patience {
        world.findings.add(
          view.ready.isEmpty
            ? "nothing moves: \(view.waits)"
            : "a wake-up is lost: these could go on: \(view.ready); all that wait: \(view.waits)"
        )
        return false
      }
      usleep(100)
    }
  }

  private func perform(_ nudge: SoakNudge, _ world: SoakWorld) {
    switch nudge {
    case .send(let index): SoakRun.trySend(world.channels[index], world.token())
    case .receive(let index): SoakRun.tryReceive(world.channels[index])
    case .close(let index): world.channels[index].channel.close()
    case .settle(let index, let how): SoakRun.settle(world.promises[index], how)
    case .signal(let index):
      let signal = world.signals[index]
      guard world.mutexes[signal.mutex].tryLock() else { return }
      signal.tokens.change()
      world.mutexes[signal.mutex].unlock()
      signal.condition.signal()
    case .stop(let index): world.actor(index)?.ref.stop()
    case .cancelActor(let index): world.actor(index)?.ref.cancel()
    case .cancel(let index): world.root(index)?.cancel(SoakFault())
    }
  }

  private func end(_ world: SoakWorld) {
    for channel in world.channels { channel.channel.close() }
    for promise in world.promises { promise.fulfill(0) }
    for flow in world.flows.with({ $0 }) { flow.job.with { $0 }?.cancel(SoakFault()) }
  }

  /// Returns false if the program has left something behind permanently.
  private func takeStock(_ world: SoakWorld, otherThan live: Int) -> Bool {
    let findings = world.findings
    for promise in world.promises { promise.fulfill(0) }
    for channel in world.channels { channel.channel.cancel() }
    for flow in world.flows.with({ $0 }) {
      let ends = flow.endCount
      findings.expect(ends == 1, "flow \(flow.number) has ended \(ends) times")
    }
    for (index, mutex) in world.mutexes.enumerated() {
      findings.expect(mutex.tryLock(), "mutex \(index) is locked at the end")
      findings.expect(world.mutexCounters[index].isExact, "mutex \(index) has lost an update")
    }
    for semaphore in world.semaphores {
      let available = semaphore.semaphore.available
      findings.expect(
        available == semaphore.permits,
        "\(available) of \(semaphore.permits) permits are there at the end"
      )
    }
    findings.expect(world.readWriteLock.tryLockWrite(), "the read-write lock is locked at the end")
    findings.expect(world.written.isExact, "the read-write lock has lost an update")
    // No other references to tokens may exist.
    world.flows.with { $0 = [] }
    world.rootJobs.with { $0 = [] }
    world.actors.with { $0 = [] }
    let isGone =
      becomes("handlers that have not run", findings) { world.handlers.now }
      && becomes("defers that have not run", findings) { world.deferred.now }
      && becomes("coroutines that live on", findings) { max(0, CoroutineRuntime.liveCount - live) }
      && becomes("values and stacks' objects that live on", findings) { world.tokens.now }
    return isGone
  }

  private func becomes(_ what: String, _ findings: SoakFindings, zero count: () -> Int) -> Bool {
    let start = clock.now
    while count() != 0 {
      if clock.now - start > patience {
        findings.add("\(what): \(count())")
        return false
      }
      usleep(100)
    }
    return true
  }
}
