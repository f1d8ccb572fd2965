import Dispatch
import Synchronization

// A supervisor is a coroutine that is told of its children's lives and decides what comes after them.
//
// What it knows of a child, on its own turn:
//
//   LIVING --- .ended: a life is over, the child rests ---> RESTING --- restart ---> LIVING
//     |                                                       |
//     |                                                       +------ end ---> LEAVING
//     +--- .gone: its job has ended ---> forgotten <--- .gone -------------------+
//
// Invariants
//  1. A child is in `children` from the moment the supervisor hears of it (.added) until its job has ended (.gone), in the order of
//     .added.
//  2. A child that rests waits for one decision, and gets one: restart, end, or its job is cancelled. Nobody rests for a
//     supervisor that has ended: it closes `events` first and answers what is in there, and who finds `events` closed ends.
//  3. A child's life is ended early only while it is LIVING here, and then its .ended or .gone is waited for. A child that rests
//     already, whose .ended is on the way, is not harmed: a verdict on it is void (ActorLife, 2).
//
// Everything happens in one coroutine, one event after the other, so the order of ends and beginnings is a matter of straight
// lines: the last started ends first, each waited for; then all begin in the order of starting.

/// A child's tie to its supervisor.
final class Supervision: Sendable {
  enum Decision: Sendable { case restart, end }

  let supervisor: SupervisorCore
  let policy: RestartPolicy
  let decisions = Channel<Decision>(.unbounded)

  init(_ supervisor: SupervisorCore, _ policy: RestartPolicy) {
    self.supervisor = supervisor
    self.policy = policy
  }

  /// Suspends the child after a life until it is known what comes next.
  func decides(_ child: ActorLife, _ outcome: Result<Void, any Error>) -> Decision {
    if case .success = outcome, child.hasDrained { return .end }
    guard supervisor.events.trySend(.ended(child, outcome)) == .sent else { return .end }
    // Cancelled while it waits, it ends; .gone tells the supervisor.
    return (try? decisions.receive()) ?? .end
  }

  func isGone(_ child: ActorLife) { _ = supervisor.events.trySend(.gone(child)) }
}

final class SupervisorCore: ActorLife, @unchecked Sendable {
  // Sound because what changes is touched on the supervisor's own turn only, or is atomic.
  enum Event: Sendable {
    case added(ActorLife)
    case ended(ActorLife, Result<Void, any Error>)
    case gone(ActorLife)
    case stop
  }

  private struct Child {
    enum State {
      case living
      case resting(Result<Void, any Error>)
      case leaving
    }
    let life: ActorLife
    let supervision: Supervision
    var state = State.living
    /// Its life was ended for another's sake.
    var isAsked = false

    var isUndecided: Bool {
      if case .resting = state { true } else { false }
    }
  }

  let events = Channel<Event>(.unbounded)
  let restartCount = Atomic<Int>(0)
  private let strategy: RestartStrategy
  private let limit: RestartLimit
  private let onRestart: (@Sendable (ActorEnd) -> Void)?
  @exclusivity(unchecked) private var children: [Child] = []
  /// When the restarts of the last period were.
  @exclusivity(unchecked) private var history: [UInt64] = []
  @exclusivity(unchecked) private var isStopping = false

  init(
    _ strategy: RestartStrategy,
    _ limit: RestartLimit,
    _ onRestart: (@Sendable (ActorEnd) -> Void)?,
    _ supervision: Supervision?
  ) {
    self.strategy = strategy
    self.limit = limit
    self.onRestart = onRestart
    super.init(supervision)
  }

  /// Any thread.
  ///
  /// The child has its job before the supervisor hears of it: a supervisor that is ending cancels whom it hears of at once, and
  /// then waits for that job's end.
  func add(_ child: ActorLife, on queue: DispatchQueue?, name: String?, _ launchSite: LaunchSite) {
    child.prepare(on: queue, name: name, launchSite)
    announce(child)
    child.begin()
  }

  /// Told before the child can end, so that it is known whose end it is.
  func announce(_ child: ActorLife) {
    // The supervisor's own handle, given up with its end.
    _ = child.handles.wrappingAdd(1, ordering: .relaxed)
    if events.trySend(.added(child)) != .sent { child.cancel() }
  }

  override func close() { _ = events.trySend(.stop) }

  override var hasDrained: Bool { isStopping }

  // MARK: A life

  override func live(in scope: Scope) throws {
    do {
      // In a life after the first: all that the last one has laid to rest.
      begin(children.map(\.life))
      while true {
        if let failed = children.first(where: \.isUndecided) {
          try decide(failed)
        } else if isStopping {
          return try stopAll()
        } else {
          handle(try events.receive())
        }
      }
    } catch {
      // Not cancelled for good, but failed or to be restarted: the children rest until it is known what becomes of this one.
      if !(job?.isCancelled ?? true) { co_shield { layToRest(children.map(\.life)) } }
      throw error
    }
  }

  private func handle(_ event: Event?) {
    switch event {
    case .added(let life):
      if let supervision = life.supervision { children.append(Child(life: life, supervision: supervision)) }
    case .ended(let life, let outcome):
      guard let index = index(of: life) else { return }
      children[index].state = .resting(outcome)
    case .gone(let life):
      if let index = index(of: life) { children.remove(at: index) }
    case .stop, nil:
      isStopping = true
    }
  }

  private func index(of life: ActorLife) -> Int? { children.firstIndex { $0.life === life } }

  // MARK: Deciding

  /// What becomes of a child whose life has ended by itself.
  private func decide(_ child: Child) throws {
    guard case .resting(let outcome) = child.state else { return }
    guard !isStopping, wantsRestart(child) else { return order(.end, child.life) }
    let end = ActorEnd(id: child.life.job?.id ?? 0, name: child.life.job?.name, exit: exit(outcome))
    try count(end, child)
    let all = children.map(\.life)
    let affected: [ActorLife] =
      switch strategy {
      case .oneForOne: [child.life]
      case .allForOne: all
      case .restForOne: Array(all.drop { $0 !== child.life })
      }
    try layToRest(affected, while: { try self.events.receive() })
    restartCount.wrappingAdd(1, ordering: .relaxed)
    onRestart?(end)
    begin(affected)
  }

  private func wantsRestart(_ child: Child) -> Bool {
    guard case .resting(let outcome) = child.state, child.supervision.policy != .never else { return false }
    if child.isAsked || child.supervision.policy == .always { return true }
    if case .failure = outcome { return true }
    return false
  }

  private func exit(_ outcome: Result<Void, any Error>) -> ActorExit {
    if case .failure(let error) = outcome { .failed(error) } else { .stopped }
  }

  /// One more restart, unless that is one too many.
  private func count(_ end: ActorEnd, _ child: Child) throws {
    let now = record.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.clock }
    history.removeAll { limit.period.deadline(after: $0) <= now }
    guard history.count < limit.restarts else {
      history = []
      // The error is carried on by this supervisor's failure.
      child.life.job?.completion.pointee.isObserved.store(true, ordering: .relaxed)
      throw RestartLimitReached(last: end, limit: limit)
    }
    history.append(now)
  }

  private func order(_ decision: Supervision.Decision, _ life: ActorLife) {
    guard let index = index(of: life), case .resting = children[index].state else { return }
    children[index].isAsked = false
    switch decision {
    case .restart:
      children[index].state = .living
      life.awake()
    case .end:
      children[index].state = .leaving
    }
    _ = children[index].supervision.decisions.trySend(decision)
  }

  // MARK: Beginning and ending

  /// Lets those of `lives` that rest begin anew, in order.
  private func begin(_ lives: [ActorLife]) {
    for life in lives {
      guard let index = index(of: life) else { continue }
      order(wantsRestart(children[index]) ? .restart : .end, life)
    }
  }

  /// Ends the lives of those that live, the last first, each when the one before has ended.
  private func layToRest(_ lives: [ActorLife], while receive: () throws -> Event?) rethrows {
    for life in lives.reversed() {
      if let index = index(of: life), case .living = children[index].state {
        children[index].isAsked = true
        life.endLife(.restart)
      }
      while let index = index(of: life), case .living = children[index].state { handle(try receive()) }
    }
  }

  /// As above, in a shield, where nothing throws.
  private func layToRest(_ lives: [ActorLife]) {
    layToRest(lives) { (try? events.receive()) ?? nil }
  }

  /// Stops the children, the last first, each when the one before has ended.
  private func stopAll() throws {
    while let life = children.last?.life {
      life.close()
      try waitUntilGone(life) { try self.events.receive() }
    }
  }

  private func waitUntilGone(_ life: ActorLife, while receive: () throws -> Event?) rethrows {
    while index(of: life) != nil {
      order(.end, life)
      handle(try receive())
    }
  }

  /// The end: children that are left are cancelled, the last first.
  override func windUp() {
    guard Carrier.current?.pointee.job == record else { return dismissAll() }
    co_shield {
      repeat {
        // Those that were added since are in here.
        while case .received(let event) = events.tryReceive() { handle(event) }
        guard let life = children.last?.life else { break }
        life.cancel()
        waitUntilGone(life) { (try? events.receive()) ?? nil }
      } while true
    }
    dismissAll()
  }

  /// What came too late, or to a supervisor that never ran.
  private func dismissAll() {
    events.close()
    while case .received(let event) = events.tryReceive() {
      switch event {
      case .added(let life): life.cancel()
      case .ended(let life, _): _ = life.supervision?.decisions.trySend(.end)
      case .gone, .stop: continue
      }
    }
    children = []
  }
}
