import Coroutine

/// Makes a program from a seed.
///
/// A program may deadlock: the conductor then nudges it, and at last cancels it. What cancellation cannot end must end
/// by itself, so two rules hold:
/// - A shield contains only steps that end by themselves.
/// - A wait on a condition takes its mutex back even when it is cancelled. So it stands under no other lock, neither of
///   its own flow nor of the flow that owns the scope.
struct SoakMaker {
  private var random: SeededRandom
  private var program: SoakProgram
  /// The number of steps that may still be made; limits the nesting.
  private var budget: Int

  static func program(seed: UInt64) -> SoakProgram {
    var maker = SoakMaker(seed: seed)
    maker.makeAll()
    return maker.program
  }

  private init(seed: UInt64) {
    random = SeededRandom(seed: seed)
    program = SoakProgram(seed: seed)
    budget = 0
  }

  private struct Context {
    var depth = 0
    var isUnderLock = false
    /// The number of repetitions by the enclosing loops.
    var times = 1

    func deeper(underLock: Bool = false, times: Int = 1) -> Context {
      Context(depth: depth + 1, isUnderLock: isUnderLock || underLock, times: self.times * times)
    }
  }

  private mutating func pick(_ count: Int) -> Int { Int(random.next() % UInt64(count)) }
  private mutating func chance(_ percent: Int) -> Bool { pick(100) < percent }
  private mutating func one<Choice>(of choices: [Choice]) -> Choice { choices[pick(choices.count)] }
  private var channelCount: Int { program.channels.count }

  private mutating func makeAll() {
    let capacities: [Channel<SoakToken>.Capacity] = [
      .rendezvous, .rendezvous, .bounded(1), .bounded(3), .unbounded, .dropOldest(2), .dropNewest(1),
    ]
    for _ in 0..<(2 + pick(4)) { program.channels.append(one(of: capacities)) }
    for _ in 0..<2 { program.semaphores.append(1 + pick(4)) }
    let mailboxes: [Channel<SoakMessage>.Capacity] = [.unbounded, .bounded(1), .rendezvous, .dropOldest(2)]
    for _ in 0..<2 { program.actors.append(one(of: mailboxes)) }
    program.promises = 3 + pick(6)
    budget = 40 + pick(400)
    let roots = 3 + pick(10)
    for _ in 0..<roots { program.roots.append(flow(Context(), length: 4 + pick(20))) }
    makeNudges()
  }

  private mutating func makeNudges() {
    var nudges: [SoakNudge] = []
    for channel in 0..<channelCount {
      for _ in 0..<pick(4) { nudges.append(chance(50) ? .send(channel) : .receive(channel)) }
      if chance(80) { nudges.append(.close(channel)) }
    }
    for promise in 0..<program.promises { nudges.append(.settle(promise, one(of: SoakSettlement.allCases))) }
    for condition in 0..<SoakProgram.conditions { for _ in 0..<pick(4) { nudges.append(.signal(condition)) } }
    for actor in program.actors.indices { nudges.append(chance(70) ? .stop(actor) : .cancelActor(actor)) }
    for root in program.roots.indices where chance(40) { nudges.append(.cancel(root)) }
    program.nudges = nudges.shuffled(using: &random)
  }

  private mutating func flow(_ context: Context, length: Int) -> SoakFlow {
    var flow = SoakFlow()
    if chance(15) { flow.start = .immediate } else if chance(5) { flow.start = .lazy }
    // The first part of an immediate start runs at the launch, on another queue than the given one.
    if flow.start != .immediate, chance(50) { flow.queue = pick(SoakProgram.queues) }
    flow.hasSmallStack = chance(20)
    flow.stubbornness = chance(15) ? 1 + pick(3) : 0
    flow.actions = actions(context, length)
    return flow
  }

  private mutating func flows(_ context: Context) -> [SoakFlow] {
    var flows: [SoakFlow] = []
    for _ in 0..<(1 + pick(4)) { flows.append(flow(context.deeper(), length: 1 + pick(6))) }
    return flows
  }

  private mutating func actions(_ context: Context, _ count: Int) -> [SoakAction] {
    var actions: [SoakAction] = []
    for _ in 0..<count where budget > 0 {
      budget -= 1
      actions.append(action(context))
    }
    return actions
  }

  private mutating func action(_ context: Context) -> SoakAction {
    let mayNest = context.depth < 4
    switch pick(mayNest ? 100 : 58) {
    case 0..<4: return .yield
    case 4..<7: return .delay(pick(300))
    case 7..<10: return .hop(pick(SoakProgram.queues))
    case 10: return chance(30) ? .fail : .yield
    case 11..<32: return channelAction()
    case 32..<41: return lockAction(context)
    case 41..<50: return promiseAction()
    case 50..<58: return otherAction()
    case 58..<70: return guarded(context)
    case 70..<92: return structured(context)
    default:
      let count = 2 + pick(max(1, 30 / context.times))
      return .loop(count, actions(context.deeper(times: count), 1 + pick(4)))
    }
  }

  private mutating func channelAction() -> SoakAction {
    let channel = pick(channelCount)
    switch pick(21) {
    case 0..<6: return .send(channel)
    case 6..<11: return .receive(channel)
    case 11: return .trySend(channel)
    case 12: return .tryReceive(channel)
    case 13: return .receiveAll(channel)
    case 14: return .receiveMany(channel, 1 + pick(4))
    case 15: return .iterate(channel, 1 + pick(5))
    case 16: return chance(25) ? .close(channel, withCause: chance(30)) : .send(channel)
    default: return .select(cases(), biased: chance(20))
    }
  }

  private mutating func cases() -> [SoakCase] {
    var cases: [SoakCase] = []
    for _ in 0..<(1 + pick(5)) {
      switch pick(16) {
      case 0..<5: cases.append(.receive(pick(channelCount)))
      case 5..<10: cases.append(.send(pick(channelCount)))
      case 10: cases.append(.await(pick(program.promises)))
      case 11: cases.append(.join(pick(4)))
      case 12: cases.append(.lock(pick(SoakProgram.mutexes)))
      case 13: cases.append(.acquire(pick(program.semaphores.count)))
      case 14: cases.append(.timeout(pick(400)))
      default: if chance(30) { cases.append(.otherwise) }
      }
    }
    return cases
  }

  private mutating func lockAction(_ context: Context) -> SoakAction {
    switch pick(7) {
    case 0: return .tryLock(pick(SoakProgram.mutexes))
    case 1 where !context.isUnderLock: return .waitForSignal(pick(SoakProgram.conditions))
    case 2: return .signal(pick(SoakProgram.conditions))
    case 3: return .once
    case 4: return .share(pick(3))
    case 5: return .read([.yield])
    default: return .lock(pick(SoakProgram.mutexes), chance(50) ? [] : [.yield])
    }
  }

  private mutating func promiseAction() -> SoakAction {
    let promise = pick(program.promises)
    switch pick(9) {
    case 0..<2: return .await(promise)
    case 2..<4: return .settle(promise, one(of: SoakSettlement.allCases))
    case 4..<6: return .chain(promise)
    case 6..<8: return .combine(one(of: SoakCombination.allCases), (0..<pick(4)).map { _ in pick(program.promises) })
    default: return .retry(1 + pick(4))
    }
  }

  private mutating func otherAction() -> SoakAction {
    switch pick(16) {
    case 0: return .blocking(pick(200))
    case 1..<3: return .resumer(one(of: SoakResumer.allCases))
    case 3: return .descriptor
    case 4..<7:
      let count = pick(8)
      let (taken, depth) = (pick(count + 2), pick(4))
      return .generate(SoakSequence(count: count, taken: taken, depth: depth, waits: chance(40), closes: chance(50)))
    case 7..<10: return .tell(pick(program.actors.count))
    case 10..<13: return .ask(pick(program.actors.count), timeout: chance(30) ? pick(500) : nil)
    case 13: return .join(pick(12))
    case 14: return chance(40) ? .cancel(pick(12)) : .join(pick(12))
    default: return asyncAction()
    }
  }

  private mutating func asyncAction() -> SoakAction {
    var steps: [SoakAsync] = []
    for _ in 0..<(1 + pick(3)) {
      switch pick(5) {
      case 0: steps.append(.yield)
      case 1: steps.append(.sleep(pick(200)))
      case 2: steps.append(.receive(pick(channelCount)))
      case 3: steps.append(.await(pick(program.promises)))
      default: steps.append(.job)
      }
    }
    return .async(steps)
  }

  private mutating func guarded(_ context: Context) -> SoakAction {
    let inside = context.deeper(underLock: true)
    switch pick(4) {
    case 0: return .lock(pick(SoakProgram.mutexes), actions(inside, 1 + pick(4)))
    case 1:
      let semaphore = pick(program.semaphores.count)
      return .acquire(semaphore, 1 + pick(program.semaphores[semaphore]), actions(inside, 1 + pick(4)))
    case 2: return .read(actions(inside, 1 + pick(3)))
    default: return .write(actions(inside, 1 + pick(3)))
    }
  }

  private mutating func structured(_ context: Context) -> SoakAction {
    switch pick(16) {
    case 0..<3: return .launch(flow(Context(depth: context.depth + 1, times: context.times), length: 1 + pick(6)))
    case 3..<6: return .scope(flows(context), one(of: SoakScopeEnd.allCases))
    case 6..<8: return .supervise(flows(context))
    case 8: return .gather(one(of: SoakCombination.allCases), flows(context))
    case 9: return .group(flows(context))
    case 10..<13: return .timeout(pick(1_500), actions(context.deeper(), 1 + pick(5)))
    case 13..<15: return .shield(endingActions())
    default: return .bind(actions(context.deeper(), 1 + pick(4)))
    }
  }

  /// Steps that end by themselves.
  private mutating func endingActions() -> [SoakAction] {
    (0..<(1 + pick(3))).map { _ in
      switch pick(5) {
      case 0: return .yield
      case 1: return .delay(pick(200))
      case 2: return .trySend(pick(channelCount))
      case 3: return .timeout(pick(300), [.receive(pick(channelCount))])
      default: return .timeout(pick(300), [.lock(pick(SoakProgram.mutexes), [])])
      }
    }
  }
}
