import Coroutine
import Dispatch

/// The error of a `fail` step, which ends its flow; also the reason of every cancellation.
struct SoakFault: Error {}
/// The error that promises are rejected with and channels are closed with.
struct SoakCause: Error {}

enum SoakLocals {
  @TaskLocal static var flow = -1
  static let coroutine = CoroutineLocal<Int>(default: -1)
}

/// Runs the steps of one flow in its coroutine.
struct SoakRun {
  let world: SoakWorld
  let flow: SoakFlowState
  let plan: SoakFlow
  /// The innermost deadline, after which every cancellable wait ends by itself.
  var deadline: ContinuousClock.Instant?
  let queue: SoakGuarded<Int?>
  let stubbornness: SoakGuarded<Int>

  init(_ world: SoakWorld, _ flow: SoakFlowState, _ plan: SoakFlow, inheritedQueue: Int?) {
    (self.world, self.flow, self.plan) = (world, flow, plan)
    queue = SoakGuarded(plan.queue ?? inheritedQueue)
    stubbornness = SoakGuarded(plan.stubbornness)
  }

  /// The body of the flow's coroutine.
  func body() throws -> Int {
    world.deferred.change()
    let citizen = world.tokens.citizen()
    defer {
      citizen.use()
      world.deferred.change(by: -1)
    }
    // A lazy job was marked as waiting for its start.
    flow.leave()
    try SoakLocals.$flow.withValue(flow.number) {
      try SoakLocals.coroutine.withValue(flow.number) { try run(plan.actions) }
    }
    return flow.number
  }

  func run(_ actions: [SoakAction]) throws {
    for action in actions {
      flow.step()
      do {
        try perform(action)
      } catch {
        judge(error, of: action)
        let endures = stubbornness.with { left in
          left -= 1
          return left >= 0
        }
        if error is SoakFault || co_isCancelled, !endures { throw error }
      }
      checkIdentity(after: action)
      checkQueue(after: action)
    }
  }

  private func judge(_ error: any Error, of action: @autoclosure () -> SoakAction) {
    let isKnown =
      switch error {
      case is CancellationError, is SoakFault, is SoakCause, is TimeoutError, is ChannelClosedError,
        is ActorStoppedError, is ReplyDroppedError,
        is AggregateError, CoroutineError.wouldDeadlock, CoroutineError.cycle:
        true
      default: false
      }
    world.findings.expect(isKnown, "flow \(flow.number): unexpected \(error) in \(action())")
  }

  private func checkIdentity(after action: @autoclosure () -> SoakAction) {
    let (task, coroutine) = (SoakLocals.flow, SoakLocals.coroutine.value)
    world.findings.expect(
      task == flow.number && coroutine == flow.number,
      "flow \(flow.number) sees the locals of \(task) and \(coroutine) after \(action())"
    )
  }

  /// Code between two suspensions is alone on a serial queue.
  private func checkQueue(after action: @autoclosure () -> SoakAction) {
    guard let queue = queue.with({ $0 }) else { return }
    let current = DispatchQueue.getSpecific(key: SoakWorld.queueKey)
    guard current == queue else {
      let other = current.map { "queue \($0)" } ?? "none of the queues"
      return world.findings.add("flow \(flow.number) runs on \(other) in place of \(queue) after \(action())")
    }
    let busy = world.queueIsBusy[queue]
    world.findings.expect(busy.change() == 1, "two coroutines run on one serial queue at once")
    busy.change(by: -1)
  }

  /// Waits for other flows.
  ///
  /// The wait could end if `ready` returns true. A plain wait throws a cancellation only if the coroutine is cancelled.
  @discardableResult
  func wait<Output>(
    _ what: StaticString,
    isPlain: Bool = true,
    until ready: @autoclosure @escaping @Sendable () -> Bool,
    _ operation: () throws -> Output
  ) throws -> Output {
    try wait(deadline == nil ? .flows(what, ready) : .outside(what), isPlain: isPlain, operation)
  }

  /// Waits for an event that happens by itself.
  @discardableResult
  func outside<Output>(
    _ what: StaticString,
    isPlain: Bool = true,
    _ operation: () throws -> Output
  ) throws -> Output {
    try wait(.outside(what), isPlain: isPlain, operation)
  }

  func wait<Output>(_ wait: SoakWait, isPlain: Bool, _ operation: () throws -> Output) throws -> Output {
    flow.enter(wait)
    defer { flow.leave() }
    do {
      return try operation()
    } catch {
      if isPlain, error is CancellationError || error is SoakFault, !co_isCancelled {
        world.findings.add("flow \(flow.number): \(wait) threw \(error) although the coroutine is not cancelled")
      }
      throw error
    }
  }

  func timed(_ micros: Int) -> SoakRun {
    var run = self
    run.deadline = .now + .microseconds(micros)
    return run
  }

  /// If cancelled, it throws on the old queue or on the new one.
  private func hop(_ target: Int) throws {
    defer { if DispatchQueue.getSpecific(key: SoakWorld.queueKey) == target { queue.with { $0 = target } } }
    try outside("co_switch") { try co_switch(to: world.queues[target]) }
  }

  private func perform(_ action: SoakAction) throws {
    switch action {
    case .yield: try outside("co_yield") { try co_yield() }
    case .delay(let micros): try delay(micros)
    case .hop(let target): try hop(target)
    case .fail: throw SoakFault()

    case .send(let index): try send(index)
    case .receive(let index): try receive(index)
    case .trySend(let index): Self.trySend(world.channels[index], world.token())
    case .tryReceive(let index): Self.tryReceive(world.channels[index])
    case .receiveAll(let index): try receiveAll(index)
    case .receiveMany(let index, let count): try receiveMany(index, count)
    case .iterate(let index, let count): try iterate(index, count)
    case .close(let index, let withCause): world.channels[index].channel.close(withCause ? SoakCause() : nil)
    case .select(let cases, let biased): try select(cases, biased)

    case .lock(let index, let inner): try lock(index, inner)
    case .tryLock(let index): try tryLock(index)
    case .acquire(let index, let permits, let inner): try acquire(index, permits, inner)
    case .read(let inner): try read(inner)
    case .write(let inner): try write(inner)
    case .waitForSignal(let index): try waitForSignal(index)
    case .signal(let index): try signal(index)
    case .once: try once()
    case .share(let key): try share(key)

    case .await(let index): try awaitPromise(world.promises[index])
    case .settle(let index, let how): Self.settle(world.promises[index], how)
    case .chain(let index): try chain(index)
    case .combine(let how, let indices): try combine(how, indices)
    case .retry(let attempts): try retry(attempts)

    case .launch(let child): launch(child)
    case .join(let index): try join(index)
    case .cancel(let index): world.root(index)?.cancel(SoakFault())
    case .scope(let children, let end): try scope(children, end)
    case .supervise(let children): try supervise(children)
    case .gather(let how, let children): try gather(how, children)
    case .group(let children): try group(children)
    case .timeout(let micros, let inner): try timeout(micros, inner)
    case .shield(let inner): try shield(inner)
    case .bind(let inner): try bind(inner)
    case .loop(let count, let inner): for _ in 0..<count { try run(inner) }

    case .generate(let sequence): try generate(sequence)
    case .tell(let index): try tell(index)
    case .ask(let index, let timeout): try ask(index, timeout)
    case .blocking(let micros): try blocking(micros)
    case .resumer(let kind): try resumer(kind)
    case .descriptor: try descriptor()
    case .async(let steps): try async(steps)
    }
  }
}
