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
// Cost. A supervisor may have very many children, so what concerns one child takes constant time, whatever their
// number: a child's Supervision leads to its entry (`SupervisedChildren`), what waits for a decision or a time is in a
// queue of its own. A stop, and a restart of all, are linear.
//
// Everything happens in one coroutine, one event after the other. So the order of ends and starts is sequential code:
// the lives end in the reverse order of starting, one after the other; then all begin in the order of starting.

/// The connection of a child to its supervisor.
final class Supervision: Sendable {
  // Sound because the supervisor's own coroutine alone uses `child`.
  enum Decision: Sendable { case restart, end }

  let supervisor: SupervisorCore
  let policy: RestartPolicy
  let decisions = Channel<Decision>(.unbounded)
  @exclusivity(unchecked) nonisolated(unsafe) fileprivate(set) var child: SupervisedChild?

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

  let events = Channel<Event>(.unbounded)
  let restartCount = Shared(Atomic<Int>(0))
  private let strategy: RestartStrategy
  private let limit: RestartLimit
  private let backoff: RestartBackoff
  private let onRestart: (@Sendable (ActorEnd) -> Void)?
  @exclusivity(unchecked) private var children = SupervisedChildren()
  /// The children that have come to rest, in that order; for some of them it may be decided by now.
  @exclusivity(unchecked) private var rested = FrontQueue<SupervisedChild>()
  /// The pauses, in the order of their ends; one that is not its child's `restart` is void.
  @exclusivity(unchecked) private var pauses = FrontQueue<(end: UInt64, child: SupervisedChild)>()
  /// The times of the restarts within the last period.
  @exclusivity(unchecked) private var history = FrontQueue<UInt64>()
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
      begin(children.all)
      while true {
        if let failed = rested.popFirst() {
          if failed.isUndecided { try decide(failed) }
        } else if isStopping {
          return try stopAll()
        } else if !beginDue() {
          try handleNext()
        }
      }
    } catch {
      // If this supervisor was not cancelled for good, it has failed or is restarted. The children rest until that is
      // decided.
      if !(job?.isCancelled ?? true) { co_shield { endLives(children.all) } }
      throw error
    }
  }

  /// Handles the next event, or returns when a pause is over.
  private func handleNext() throws {
    while let first = pauses.first, first.child.restart != first.end { _ = pauses.popFirst() }
    guard let next = pauses.first?.end else { return handle(try events.receive()) }
    let (now, pause) = (clock, Duration.nanoseconds(Int64(clamping: next - min(next, clock))))
    guard next > now else { return }
    do {
      handle(try withDeadline(after: pause, called: nil) { try events.receive() })
    } catch is TimeoutError {
      // The pause is over; or the supervisor was cancelled with a TimeoutError as the reason.
      try co_checkCancelled()
    }
  }

  /// Begins the lives whose pause is over; returns false if there are none.
  private func beginDue() -> Bool {
    let now = clock
    var due: [SupervisedChild] = []
    while let first = pauses.first, first.end <= now || first.child.restart != first.end {
      _ = pauses.popFirst()
      guard first.child.restart == first.end else { continue }
      first.child.restart = nil
      due.append(first.child)
    }
    begin(due)
    return !due.isEmpty
  }

  private func handle(_ event: Event?) {
    switch event {
    case .added(let life):
      guard let supervision = life.supervision else { return }
      let child = SupervisedChild(life, supervision, began: clock)
      supervision.child = child
      children.append(child)
    case .ended(let life, let outcome):
      guard let child = life.supervision?.child else { return }
      child.state = .resting(outcome)
      rested.append(child)
    case .gone(let life):
      guard let child = life.supervision?.child else { return }
      remove(child)
    case .stop, nil:
      isStopping = true
    }
  }

  private func remove(_ child: SupervisedChild) {
    child.state = .gone
    child.restart = nil
    child.supervision.child = nil
    children.remove(child)
  }

  // MARK: Deciding

  /// Decides what follows for a child whose life has ended by itself.
  private func decide(_ child: SupervisedChild) throws {
    guard case .resting(let outcome) = child.state else { return }
    guard !isStopping, wantsRestart(child) else { return order(.end, child) }
    let end = ActorEnd(id: child.life.job?.id ?? 0, name: child.life.job?.name, exit: exit(outcome))
    try count(end, child)
    let pause = backoff.pause(after: consecutive(child))
    let affected: [SupervisedChild] =
      switch strategy.kind {
      case .oneForOne: [child]
      case .allForOne: children.all
      case .restForOne: children.from(child)
      }
    try endLives(affected, while: { try self.events.receive() })
    restartCount.touched.wrappingAdd(1, ordering: .relaxed)
    SchedulerRegistry.ended.addShared(to: .restarts)
    if let job = child.life.job { EndedJobs.noteRestart(of: job, outcome) }
    onRestart?(end)
    guard pause > .zero else { return begin(affected) }
    let restart = pause.deadline(after: clock)
    for child in affected where child.isResting {
      child.restart = restart
      pauses.insert((restart, child)) { $0.end <= restart }
    }
  }

  /// The number of ends of a child that have followed one another, with this one.
  ///
  /// A life that was longer than `backoff.reset` is a new beginning.
  private func consecutive(_ child: SupervisedChild) -> Int {
    let isNew = backoff.reset.deadline(after: child.began) <= clock
    child.failures = isNew ? 1 : child.failures + 1
    return child.failures
  }

  private func wantsRestart(_ child: SupervisedChild) -> Bool {
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
  private func count(_ end: ActorEnd, _ child: SupervisedChild) throws {
    let now = clock
    while let first = history.first, limit.period.deadline(after: first) <= now { _ = history.popFirst() }
    guard history.count < limit.restarts else {
      history = FrontQueue()
      // This supervisor's failure contains the error.
      child.life.job?.completion.pointee.isObserved.store(true, ordering: .relaxed)
      // Up a tree of supervisors the first cause is passed on: an error around an error for each level has no bound.
      let inner = if case .failed(let error as Supervisor.RestartLimitError) = end.exit { error.last } else { end }
      throw Supervisor.RestartLimitError(last: inner, limit: limit)
    }
    history.append(now)
  }

  private func order(_ decision: Supervision.Decision, _ child: SupervisedChild) {
    guard case .resting(let outcome) = child.state else { return }
    // The supervisor itself has ended this life, because of another child.
    if decision == .end, child.isEndedForAnother, case .failure(let error) = outcome, error is CancellationError {
      child.life.job?.completion.pointee.isObserved.store(true, ordering: .relaxed)
    }
    child.isEndedForAnother = false
    child.restart = nil
    switch decision {
    case .restart:
      child.state = .living
      child.began = clock
      child.life.awake()
    case .end:
      child.state = .leaving
    }
    _ = child.supervision.decisions.trySend(decision)
  }

  // MARK: Beginning and ending

  /// Starts a new life of each resting child among these, in order.
  private func begin(_ children: [SupervisedChild]) {
    for child in children { order(wantsRestart(child) ? .restart : .end, child) }
  }

  /// Ends the lives of the living children among these, in reverse order, one after the other.
  private func endLives(_ children: [SupervisedChild], while receive: () throws -> Event?) rethrows {
    for child in children.reversed() {
      if case .living = child.state {
        child.isEndedForAnother = true
        child.life.endLife(.restart)
      }
      while case .living = child.state { handle(try receive()) }
    }
  }

  /// Does the same in a shield, where nothing throws.
  private func endLives(_ children: [SupervisedChild]) {
    endLives(children) { (try? events.receive()) ?? nil }
  }

  /// Stops the children in reverse order, one after the other.
  private func stopAll() throws {
    while let child = children.last {
      child.life.close()
      try waitUntilGone(child) { try self.events.receive() }
    }
  }

  private func waitUntilGone(_ child: SupervisedChild, while receive: () throws -> Event?) rethrows {
    while !child.isGone {
      order(.end, child)
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
        guard let child = children.last else { break }
        child.life.cancel()
        waitUntilGone(child) { (try? events.receive()) ?? nil }
      } while true
    }
    dismissAll()
  }

  /// A supervisor that never runs cancels its children at once: otherwise they could begin.
  override func willBeDropped() -> @Sendable () -> Void { beginDismissal() }

  private func dismissAll() {
    beginDismissal()()
    for child in children.all { remove(child) }
    // Each child leads to its supervisor.
    (rested, pauses) = (FrontQueue(), FrontQueue())
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

// MARK: - The children

/// A child, as its supervisor's own coroutine knows it.
final class SupervisedChild {
  enum State {
    case living
    case resting(Result<Void, any Error>)
    case leaving
    case gone
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
  fileprivate var row = 0

  init(_ life: ActorLife, _ supervision: Supervision, began: UInt64) {
    (self.life, self.supervision, self.began) = (life, supervision, began)
  }

  var isResting: Bool {
    if case .resting = state { true } else { false }
  }
  var isUndecided: Bool { isResting && restart == nil }
  var isGone: Bool {
    if case .gone = state { true } else { false }
  }
}

/// The children in the order of their starts.
///
/// Each knows its row, and a child that goes leaves an empty one. The last row is not empty, and more than half of the
/// rows are taken away when more than half are empty: so each call but `all` takes constant time in the long run.
private struct SupervisedChildren {
  private var rows: [SupervisedChild?] = []
  private var count = 0

  var all: [SupervisedChild] { rows.compactMap { $0 } }
  var last: SupervisedChild? { rows.last ?? nil }
  func from(_ child: SupervisedChild) -> [SupervisedChild] { rows[child.row...].compactMap { $0 } }

  mutating func append(_ child: SupervisedChild) {
    child.row = rows.count
    rows.append(child)
    count += 1
  }

  mutating func remove(_ child: SupervisedChild) {
    rows[child.row] = nil
    count -= 1
    while case .some(.none) = rows.last { rows.removeLast() }
    guard rows.count > 2 * count + 8 else { return }
    rows = all
    for (row, child) in rows.enumerated() { child?.row = row }
  }
}

/// Values in order, which are taken from the front, in constant time.
private struct FrontQueue<Value> {
  /// Nil in front of `head`.
  private var values: [Value?] = []
  private var head = 0

  var count: Int { values.count - head }
  var first: Value? { head < values.count ? values[head] : nil }

  mutating func append(_ value: Value) { values.append(value) }

  mutating func popFirst() -> Value? {
    guard let first else { return nil }
    values[head] = nil
    head += 1
    if 2 * head >= values.count {
      values.removeFirst(head)
      head = 0
    }
    return first
  }

  /// Inserts a value behind those that stay in front of it; most are added at the end.
  mutating func insert(_ value: Value, behind staysInFront: (Value) -> Bool) {
    var index = values.count
    while index > head, let other = values[index - 1], !staysInFront(other) { index -= 1 }
    values.insert(value, at: index)
  }
}
