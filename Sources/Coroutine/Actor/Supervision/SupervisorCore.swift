import Dispatch
import Synchronization

// A supervisor is a coroutine that gets events about its children's lives, and decides what follows.
//
// The state of a child, as the supervisor's own coroutine knows it:
//
//   LIVING --- .ended: a life is over, the child rests ---> RESTING --- restart ---> LIVING
//     |                                                       |
//     |                                                       +------ end ---> LEAVING
//     +--- .gone: its job has ended ---> removed <--- .gone ---------------------+
//
// Invariants
//  1. A child is in `children` from the event .added until its job has ended (.gone), in the order of .added.
//  2. A resting child waits for one decision, and gets one: restart, end, or the cancellation of its job. No child
//     waits for a supervisor that has ended: the supervisor closes `events` first, and answers the events in it. A
//     child that finds `events` closed ends.
//  3. A child's life is ended early only while the child is LIVING here, and then the supervisor waits for its .ended
//     or .gone. If the child rests already, and its .ended is on the way, the verdict is void (ActorLife, 2).
//
// A restart after a pause (RestartBackoff) is decided at once, and the lives that it concerns end at once. The children
// then rest with a time, and the supervisor goes on with other events until that has come. If another end concerns
// them meanwhile, they get the later time.
//
// Everything happens in one coroutine, one event after the other. So the order of ends and starts is sequential code:
// the lives end in the reverse order of starting, one after the other; then all begin in the order of starting.

/// The connection of a child to its supervisor.
final class Supervision: Sendable {
  enum Decision: Sendable { case restart, end }

  let supervisor: SupervisorCore
  let policy: RestartPolicy
  let decisions = Channel<Decision>(.unbounded)

  init(_ supervisor: SupervisorCore, _ policy: RestartPolicy) {
    self.supervisor = supervisor
    self.policy = policy
  }

  /// Suspends the child after a life until the supervisor has decided what follows.
  func decides(_ child: ActorLife, _ outcome: Result<Void, any Error>) -> Decision {
    if case .success = outcome, child.hasDrained { return .end }
    guard supervisor.events.trySend(.ended(child, outcome)) == .sent else { return .end }
    // If the child is cancelled while it waits, it ends. The event .gone tells the supervisor.
    return (try? decisions.receive()) ?? .end
  }

  func isGone(_ child: ActorLife) { _ = supervisor.events.trySend(.gone(child)) }
}

final class SupervisorCore: ActorLife, @unchecked Sendable {
  // Sound because mutable state is touched only on the supervisor's own coroutine, or is atomic.
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
    /// Whether its life was ended because of another child's end.
    var isEndedForAnother = false
    /// When its present life has begun, and the number of ends that have followed one another.
    var began: UInt64
    var failures = 0
    /// When its next life begins, if it rests until then: the pause of the back-off.
    var restart: UInt64?

    var isResting: Bool {
      if case .resting = state { true } else { false }
    }
    var isUndecided: Bool { isResting && restart == nil }
  }

  let events = Channel<Event>(.unbounded)
  let restartCount = Shared(Atomic<Int>(0))
  private let strategy: RestartStrategy
  private let limit: RestartLimit
  private let backoff: RestartBackoff
  private let onRestart: (@Sendable (ActorEnd) -> Void)?
  @exclusivity(unchecked) private var children: [Child] = []
  /// The times of the restarts within the last period.
  @exclusivity(unchecked) private var history: [UInt64] = []
  @exclusivity(unchecked) private var isStopping = false

  init(
    _ strategy: RestartStrategy,
    _ limit: RestartLimit,
    _ backoff: RestartBackoff,
    _ onRestart: (@Sendable (ActorEnd) -> Void)?,
    _ supervision: Supervision?
  ) {
    self.strategy = strategy
    self.limit = limit
    self.backoff = backoff
    self.onRestart = onRestart
    super.init(supervision)
  }

  /// Starts a child.
  ///
  /// Called on any thread. The child has its job before the supervisor gets the event. A supervisor that is ending
  /// cancels the child at once, and then waits for that job's end.
  func add(_ child: ActorLife, on queue: DispatchQueue?, name: String?, _ launchSite: LaunchSite) {
    child.prepare(on: queue, name: name, launchSite)
    announce(child)
    child.begin()
  }

  /// Sends the event .added before the child can end, so that the supervisor knows the child by its end.
  func announce(_ child: ActorLife) {
    // The supervisor's own handle, which it gives up at its end.
    _ = child.handles.wrappingAdd(1, ordering: .relaxed)
    if events.trySend(.added(child)) != .sent { child.cancel() }
  }

  override func close() { _ = events.trySend(.stop) }

  override var hasDrained: Bool { isStopping }

  // MARK: A life

  override func live(in scope: Scope) throws {
    do {
      // A later life starts with all the children that the previous life has ended.
      begin(children.map(\.life))
      while true {
        if let failed = children.first(where: \.isUndecided) {
          try decide(failed)
        } else if isStopping {
          return try stopAll()
        } else if !beginDue() {
          try handleNext()
        }
      }
    } catch {
      // If this supervisor was not cancelled for good, it has failed or is restarted. The children rest until that is
      // decided.
      if !(job?.isCancelled ?? true) { co_shield { endLives(children.map(\.life)) } }
      throw error
    }
  }

  /// Handles the next event, or returns when a pause is over.
  private func handleNext() throws {
    guard let next = children.compactMap(\.restart).min() else { return handle(try events.receive()) }
    let (now, pause) = (clock, Duration.nanoseconds(Int64(clamping: next - min(next, clock))))
    guard next > now else { return }
    do { handle(try co_timeout(pause) { try events.receive() }) } catch is TimeoutError {
      // The pause is over; or the supervisor was cancelled with a TimeoutError as the reason.
      try co_checkCancelled()
    }
  }

  /// Begins the lives whose pause is over; returns false if there are none.
  private func beginDue() -> Bool {
    let now = clock
    let due = children.filter { $0.restart.map { $0 <= now } ?? false }.map(\.life)
    for life in due { if let index = index(of: life) { children[index].restart = nil } }
    begin(due)
    return !due.isEmpty
  }

  private func handle(_ event: Event?) {
    switch event {
    case .added(let life):
      if let supervision = life.supervision {
        children.append(Child(life: life, supervision: supervision, began: clock))
      }
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

  /// Decides what follows for a child whose life has ended by itself.
  private func decide(_ child: Child) throws {
    guard case .resting(let outcome) = child.state else { return }
    guard !isStopping, wantsRestart(child) else { return order(.end, child.life) }
    let end = ActorEnd(id: child.life.job?.id ?? 0, name: child.life.job?.name, exit: exit(outcome))
    try count(end, child)
    let pause = backoff.pause(after: consecutive(child))
    let all = children.map(\.life)
    let affected: [ActorLife] =
      switch strategy.kind {
      case .oneForOne: [child.life]
      case .allForOne: all
      case .restForOne: Array(all.drop { $0 !== child.life })
      }
    try endLives(affected, while: { try self.events.receive() })
    restartCount.touched.wrappingAdd(1, ordering: .relaxed)
    onRestart?(end)
    guard pause > .zero else { return begin(affected) }
    let restart = pause.deadline(after: clock)
    for life in affected {
      if let index = index(of: life), children[index].isResting { children[index].restart = restart }
    }
  }

  /// The number of ends of a child that have followed one another, with this one.
  ///
  /// A life that was longer than `backoff.reset` is a new beginning.
  private func consecutive(_ child: Child) -> Int {
    guard let index = index(of: child.life) else { return 1 }
    let now = clock
    let isNew = backoff.reset.deadline(after: children[index].began) <= now
    children[index].failures = isNew ? 1 : children[index].failures + 1
    return children[index].failures
  }

  private func wantsRestart(_ child: Child) -> Bool {
    guard case .resting(let outcome) = child.state, child.supervision.policy != .never else { return false }
    if child.isEndedForAnother || child.supervision.policy == .always { return true }
    if case .failure = outcome { return true }
    return false
  }

  private func exit(_ outcome: Result<Void, any Error>) -> ActorExit {
    if case .failure(let error) = outcome { .failed(error) } else { .stopped }
  }

  /// Counts one more restart.
  ///
  /// Throws if that exceeds the limit.
  private func count(_ end: ActorEnd, _ child: Child) throws {
    let now = clock
    history.removeAll { limit.period.deadline(after: $0) <= now }
    guard history.count < limit.restarts else {
      history = []
      // This supervisor's failure contains the error.
      child.life.job?.completion.pointee.isObserved.store(true, ordering: .relaxed)
      throw Supervisor.RestartLimitError(last: end, limit: limit)
    }
    history.append(now)
  }

  private func order(_ decision: Supervision.Decision, _ life: ActorLife) {
    guard let index = index(of: life), case .resting = children[index].state else { return }
    children[index].isEndedForAnother = false
    children[index].restart = nil
    switch decision {
    case .restart:
      children[index].state = .living
      children[index].began = clock
      life.awake()
    case .end:
      children[index].state = .leaving
    }
    _ = children[index].supervision.decisions.trySend(decision)
  }

  // MARK: Beginning and ending

  /// Starts a new life of each resting child in `lives`, in order.
  private func begin(_ lives: [ActorLife]) {
    for life in lives {
      guard let index = index(of: life) else { continue }
      order(wantsRestart(children[index]) ? .restart : .end, life)
    }
  }

  /// Ends the lives of the living children, in reverse order, one after the other.
  private func endLives(_ lives: [ActorLife], while receive: () throws -> Event?) rethrows {
    for life in lives.reversed() {
      if let index = index(of: life), case .living = children[index].state {
        children[index].isEndedForAnother = true
        life.endLife(.restart)
      }
      while let index = index(of: life), case .living = children[index].state { handle(try receive()) }
    }
  }

  /// Does the same in a shield, where nothing throws.
  private func endLives(_ lives: [ActorLife]) {
    endLives(lives) { (try? events.receive()) ?? nil }
  }

  /// Stops the children in reverse order, one after the other.
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

  /// Cancels the children that are left, in reverse order.
  override func windUp() {
    guard let job = Carrier.current?.pointee.job, runs(in: job) else { return dismissAll() }
    co_shield {
      repeat {
        // The events contain the children that were added in the meantime.
        while case .received(let event) = events.tryReceive() { handle(event) }
        guard let life = children.last?.life else { break }
        life.cancel()
        waitUntilGone(life) { (try? events.receive()) ?? nil }
      } while true
    }
    dismissAll()
  }

  /// A supervisor that never runs cancels its children at once: otherwise they could begin.
  override func willBeDropped() -> @Sendable () -> Void { beginDismissal() }

  private func dismissAll() {
    beginDismissal()()
    children = []
  }

  /// Answers the events that came too late, or that a supervisor got that never ran; returns what runs users' code.
  private func beginDismissal() -> @Sendable () -> Void {
    events.close()
    var (drops, kept): ([@Sendable () -> Void], [Event]) = ([], [])
    while case .received(let event) = events.tryReceive() {
      // Its release may be that of an actor, and so of what the program's hooks refer to.
      kept.append(event)
      switch event {
      case .added(let life): drops.append(life.beginCancel())
      case .ended(let life, _): _ = life.supervision?.decisions.trySend(.end)
      case .gone, .stop: continue
      }
    }
    return { [drops, kept] in
      for drop in drops { drop() }
      withExtendedLifetime(kept) {}
    }
  }
}
