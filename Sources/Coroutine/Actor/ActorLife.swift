import Synchronization

// An actor, independent of its message type: a job that runs its body, the asks that it has not answered, and its end.
// The body runs once. In a supervised actor it may run again; each run is one life.
//
//            +------------- .restart -------------+
//            v                                    |
//   --> LIVING --- its body has returned ---> RESTING --- .end, or it was cancelled ---> ENDING --> ENDED
//          |       or thrown, and it is           (waits for its supervisor's decision)    ^
//          |       supervised                                                              |
//          +--- the same, unsupervised; it was cancelled; it was stopped and has drained --+
//
// Ownership
//   job, record, supervision       set before any other thread knows the actor; constant
//   asks, refusesAsks, lateCount   under `asksLock`, with the cells of this actor's askers (ActorRef.swift)
//   scope, isResting, verdict,
//   ending, watchers, hasLeft      under `lock`
//   watching                       the actor's own coroutine
//
// Invariants
//  1. `ending` is written once, under the lock, and only after the mailbox is closed and empty and no ask is pending.
//     So a thread that has joined the job, or has been told of the end, finds that the actor accepts neither messages
//     nor asks.
//  2. `scope` is set while the body and the coroutines that it launched run, so that a life can be ended without ending
//     the job. A verdict on a living actor ends that life, even if the scope is not open yet: the thread that opens the
//     scope finds the verdict. A verdict on a resting actor is void, because that life is over.
//  3. The job's last action calls `finish`. The job's completion calls it once more, for a job that was cancelled
//     before it started and whose body never ran. The first call counts.
//  4. A watcher is in `watchers` until the end or until it is cancelled. The thread that takes it out, under the lock,
//     decides: the end calls it once, a cancellation never does. A watcher that arrives after the end is called by the
//     thread that adds it. A watcher that was cancelled before it arrived is not added.
//  5. When the job's end is published, the actor is in no table (registry, group), on every way to end. `finish` comes
//     before the end of a job that has run. For one that never ran, `willBeDropped` does it: it sets `hasLeft` and
//     takes the watchers `.leaves` out, under the lock. So each is called by that thread, or by one that adds it later.
//
// Reference cycle. The actor holds its job, and the job's body holds the actor. The cycle ends with the body, at the
// job's end. A job that was launched always reaches its end.

@usableFromInline
class ActorLife: @unchecked Sendable {
  // Sound because each mutable property names its guard, above.
  @exclusivity(unchecked) private(set) final var job: Job<Void>?
  /// The job's record, which identifies the actor's own coroutine; nil until `attach`.
  @exclusivity(unchecked) @usableFromInline private(set) final var record: JobRef?
  final let supervision: Supervision?

  @usableFromInline final let asksLock = Shared<SpinLock>()
  @exclusivity(unchecked) @usableFromInline final var asks = WaitQueue()
  @exclusivity(unchecked) @usableFromInline final var refusesAsks = false
  @exclusivity(unchecked) @usableFromInline final var lateCount = 0

  final let lock = Shared<ThreadLock>()
  @exclusivity(unchecked) fileprivate final var scope: Scope?
  @exclusivity(unchecked) private final var isResting = false
  @exclusivity(unchecked) private final var verdict: Verdict?
  @exclusivity(unchecked) private final var ending: ActorEnd?
  @exclusivity(unchecked) private(set) final var watchers: [ActorWatcher] = []
  @exclusivity(unchecked) private final var hasLeft = false

  /// The watchers that this life has created; they are cancelled at its end.
  @exclusivity(unchecked) final var watching: [ActorWatcher] = []

  /// The number of handles.
  ///
  /// The mailbox closes when the last one is released.
  // Not shared: only the last release shows, by the mailbox.
  final let handles = Atomic<Int>(0)

  /// Whether reports list the mailbox; set before any other thread knows the actor.
  @exclusivity(unchecked) private final var isListed = false

  init(_ supervision: Supervision?) { self.supervision = supervision }

  deinit {
    Inspection.letFinish(self)
    if isListed { ValueQueues.remove(self) }
  }

  /// What an asker records as the source of its wait.
  @inlinable final var address: UInt { UInt(bitPattern: Unmanaged.passUnretained(self).toOpaque()) }

  // MARK: For subclasses

  /// Runs the body once, on the actor's own coroutine.
  func live(in scope: Scope) throws {}

  /// Whether the actor was stopped and has handled everything, so that a return of the body is its end.
  var hasDrained: Bool { false }

  /// Closes the mailbox to new messages.
  ///
  /// The queued messages remain.
  func close() {}

  /// Closes the mailbox, and returns what drops the queued messages, which runs users' code.
  func beginDropAll() -> @Sendable () -> Void { {} }

  /// Keeps the actor's state and discards the state of the last life.
  ///
  /// Called between two lives, on the actor's own coroutine.
  func prepareNextLife() {}

  /// Called before the end is published.
  func windUp() {}

  /// The messages in the mailbox, for reports.
  var holding: QueueHolding { QueueHolding(limit: 0) }

  /// Lists the mailbox for reports; before any other thread knows the actor.
  final func list(_ site: LaunchSite) { isListed = ValueQueues.add(self, limit: holding.limit, site) }

  // MARK: Living

  /// Stores the job that will run this actor, before any other thread knows either.
  final func attach(_ job: Job<Void>) {
    self.job = job
    record = job.record
    _ = job.completion.add(ActorEndCallback(self), observes: .no)
  }

  /// Whether a job is the actor's own coroutine.
  ///
  /// Compares addresses, because a comparison of optionals tests for nil as well.
  @inlinable @inline(__always)
  final func runs(in job: JobRef) -> Bool { UInt(bitPattern: job) == UInt(bitPattern: record) }

  /// The clock of the actor's scheduler; called on the actor's own coroutine.
  final var clock: UInt64 {
    let scheduler = record.unsafelyUnwrapped.pointee.scheduler.load(ordering: .relaxed)
    return scheduler._withUnsafeGuaranteedRef { $0.localClock }
  }

  /// Starts a prepared job.
  ///
  /// A job that was cancelled in the meantime has already been started.
  final func begin() { job?.start() }

  /// The job's body.
  final func run() throws {
    var outcome = oneLife()
    while let supervision, mayLiveOn, supervision.decides(self, outcome) == .restart {
      forgetWatching()
      prepareNextLife()
      outcome = oneLife()
    }
    finish(outcome)
    try outcome.get()
  }

  private final func oneLife() -> Result<Void, any Error> {
    var outcome: Result<Void, any Error> = Result {
      try co_scope { scope in
        let verdict = lock.withLock {
          self.scope = scope
          return self.verdict
        }
        if let verdict { throw verdict.error }
        try live(in: scope)
      }
    }
    lock.lock()
    let (openScope, verdict) = (scope.take(), verdict.take())
    isResting = supervision != nil
    lock.unlock()
    withExtendedLifetime(openScope) {}
    if case .failed(let error) = verdict, !(job?.isCancelled ?? false) { outcome = .failure(error) }
    return outcome
  }

  /// Whether another life is possible.
  ///
  /// If false, the actor was asked to end, and there is nothing to decide.
  private final var mayLiveOn: Bool { !(job?.isCancelled ?? true) }

  /// Ends the RESTING state of the actor, so that its next life can begin.
  ///
  /// The supervisor calls it before it sends `.restart`. From here on the actor counts as living.
  final func awake() { lock.withLock { isResting = false } }

  /// Ends the current life: its waits throw.
  final func endLife(_ verdict: Verdict) {
    lock.lock()
    guard !isResting, ending == nil, self.verdict == nil else { return lock.unlock() }
    self.verdict = verdict
    let scope = scope
    lock.unlock()
    scope?.cancel(verdict.error)
  }

  // MARK: Ending

  /// Fails every pending ask, and every later one.
  final func failAsks() {
    var woken = JobQueue()
    asksLock.lock()
    refusesAsks = true
    // An asker that is linked waits: if `settle` returns true, it has claimed that wait.
    while let asker = asks.first?.oneShot {
      if asker.settle() { woken.append(asker.job) }
      asker.closeAsk(of: self)
    }
    asksLock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
  }

  /// Closes the mailbox, drops the queued messages, and fails every ask that has no answer.
  final func refuseMessages() {
    failAsks()
    beginDropAll()()
  }

  /// Ends the actor now: queued messages are dropped, asks fail, and the body's waits throw.
  ///
  /// The job is cancelled before the mailbox is closed. In the other order, the mailbox would report a stop to a body
  /// that waits for a message.
  final func cancel() { beginCancel()() }

  /// Cancels the actor, and returns what drops the queued messages, which runs users' code.
  final func beginCancel() -> @Sendable () -> Void {
    failAsks()
    job?.cancel()
    return beginDropAll()
  }

  /// Called when the job ends without having run, before that is published; returns what runs users' code.
  func willBeDropped() -> @Sendable () -> Void {
    failAsks()
    let (left, dropAll) = (leaveTables(), beginDropAll())
    return {
      dropAll()
      withExtendedLifetime(left) {}
    }
  }

  /// Takes the actor out of all tables; returns what they held, because its release may run users' code.
  private final func leaveTables() -> [any Sendable] {
    lock.lock()
    hasLeft = true
    let leaving = watchers.filter(\.leavesTable)
    if !leaving.isEmpty { watchers.removeAll(where: \.leavesTable) }
    for watcher in leaving { watcher.watcherIndex = nil }
    for (index, watcher) in watchers.enumerated() { watcher.watcherIndex = index }
    lock.unlock()
    return leaving.compactMap { $0.leaveTable() }
  }

  /// Publishes the end to all watchers.
  final func finish(_ outcome: Result<Void, any Error>) {
    if lock.withLock({ ending != nil }) { return }
    windUp()
    refuseMessages()
    let end = ActorEnd(id: job?.id ?? 0, name: job?.name, exit: exit(outcome))
    lock.lock()
    ending = end
    let told = watchers
    watchers = []
    lock.unlock()
    for watcher in told { watcher.fire(end) }
    forgetWatching()
  }

  private final func exit(_ outcome: Result<Void, any Error>) -> ActorExit {
    let isCancelled = job?.isCancelled ?? false
    switch outcome {
    case .success: return isCancelled ? .cancelled : .stopped
    case .failure(let error):
      return isCancelled && (job?.isOwnCancellation(error) ?? false) ? .cancelled : .failed(error)
    }
  }

  // MARK: Being watched

  /// Adds a watcher, which is called at the end, or at once if the actor has ended.
  final func watch(_ watcher: ActorWatcher) {
    lock.lock()
    if hasLeft, watcher.leavesTable {
      lock.unlock()
      _ = watcher.leaveTable()
      return
    }
    guard let ending else {
      // A cancellation changes the watcher's state first, and then calls `unwatch`. A watcher that is already done here
      // would never be removed.
      if !watcher.isDone {
        watcher.watcherIndex = watchers.count
        watchers.append(watcher)
      }
      return lock.unlock()
    }
    lock.unlock()
    watcher.fire(ending)
  }

  /// Removes a watcher.
  ///
  /// Does nothing if it is not in the list any more.
  final func unwatch(_ watcher: ActorWatcher) {
    lock.lock()
    if let watcherIndex = watcher.watcherIndex, watcherIndex < watchers.count, watchers[watcherIndex] === watcher {
      watchers.swapAt(watcherIndex, watchers.count - 1)
      watchers[watcherIndex].watcherIndex = watcherIndex
      watchers.removeLast()
      watcher.watcherIndex = nil
    }
    lock.unlock()
  }

  private final func forgetWatching() {
    for watcher in watching { watcher.cancel() }
    watching = []
  }
}

/// The reason to end a life early.
enum Verdict {
  /// The supervisor restarts the actor.
  case restart
  /// The actor fails with this error.
  case failed(any Error)

  var error: any Error {
    switch self {
    case .restart: CancellationError()
    case .failed(let error): error
    }
  }
}

/// Handles the end of a job, including a job that was cancelled before it ran.
private final class ActorEndCallback: WaitCallback, @unchecked Sendable {
  // Sound because `actor` never changes.
  private let actor: ActorLife
  init(_ actor: ActorLife) {
    self.actor = actor
    super.init()
  }
  /// A job that is settled accepts no messages: ActorLife, 1.
  override var preparesDrop: Bool { true }
  override func jobWillBeDropped() -> (@Sendable () -> Void)? { actor.willBeDropped() }
  override var isForeign: Bool { true }
  override func fire() {
    actor.finish(actor.job?.completion.outcome(as: Void.self) ?? .failure(CancellationError()))
    actor.supervision?.isGone(actor)
  }
}

extension ActorLife: OwnedSource, ValueQueue {
  final var waitLock: UnsafePointer<SpinLock> { withUnsafePointer(to: asksLock.known) { $0 } }
  final func inspect(_ names: JobNames) -> String { job.map { "actor \(names.job($0))" } ?? "an actor" }
  final func verb(of queue: UInt?) -> String { "ask" }

  /// The actor, or a coroutine of its scope to which it has given the reply; nil if it has delegated the ask.
  ///
  /// A reply that the actor has given to others without `delegate()` counts as its own.
  final func owners(awaitedBy asker: JobRef) -> [UInt]? {
    guard let record else { return nil }
    // Known: these are looks, which change no answer.
    let isLinked = asksLock.known.withLock { asks.first { $0.pointee.job == asker } != nil }
    guard isLinked else { return nil }
    let scope = lock.known.withLock { self.scope }
    return [record.ownerNumber] + (scope?.unfinished ?? [])
  }
}

// MARK: - The end

/// The way in which an actor ended.
///
/// A restart by a supervisor is not an end: the same handle refers to the actor before and after it.
public enum ActorExit: Sendable {
  /// The body returned: the actor was stopped and has handled its mailbox, or the body finished on its own.
  case stopped
  /// The actor was cancelled.
  case cancelled
  /// The body threw, and no supervisor has restarted the actor.
  case failed(any Error)
}

/// The notice of an actor's end.
public struct ActorEnd: Sendable {
  /// The number of the actor's job.
  public var id: UInt64
  /// The actor's name, if it had one.
  public var name: String?
  /// The way in which the actor ended.
  public var exit: ActorExit

  /// Creates a notice.
  public init(id: UInt64, name: String? = nil, exit: ActorExit) {
    self.id = id
    self.name = name
    self.exit = exit
  }
}

extension ActorMonitor {
  /// The error of an actor whose linked actor was cancelled or has failed.
  public struct LinkedActorError: Error, CustomStringConvertible {
    /// The end of the linked actor; if that has failed with an error of this type, the end that its error has: the
    /// first cause.
    public var end: ActorEnd
    /// Creates the error.
    public init(end: ActorEnd) { self.end = end }
    /// A sentence that describes what happened.
    public var description: String {
      let name = end.name.map { "\"\($0.asName)\" " } ?? ""
      let how =
        switch end.exit {
        case .stopped: "has stopped"
        case .cancelled: "was cancelled"
        case .failed(let error): "has failed: \(asLine(error))"
        }
      return "the linked actor \(name)(id \(end.id)) \(how)"
    }
  }
}

/// Watches one actor, and is called at most once, at that actor's end.
///
/// `watcherIndex` is the index in the target's list, under the target's lock. The thread that moves the state on takes
/// `action`:
///
///   WAITING --- fire ---> CALLED;  WAITING --- cancel ---> CANCELLED
///
/// A watcher may be cancelled before it is armed, by a thread that got it from a creator that arms it later. In that
/// case the target does not add it to its list.
final class ActorWatcher: @unchecked Sendable {
  // Sound because `state` decides which thread may touch `action`, and a lock covers `watcherIndex`.
  enum Action: Sendable {
    /// Tells of the end; it may run users' code.
    case tells(@Sendable (ActorEnd) -> Void)
    /// Takes the actor out of a table, and returns what the table held. Runs no users' code, unless that is released.
    case leaves(@Sendable () -> (any Sendable)?)
  }

  let target: ActorLife
  @exclusivity(unchecked) var watcherIndex: Int?
  private let state = Shared(Atomic<UInt8>(ActorWatcher.waiting))
  @exclusivity(unchecked) private var action: Action?
  let leavesTable: Bool

  init(_ target: ActorLife, _ action: Action) {
    self.target = target
    self.action = action
    leavesTable = if case .leaves = action { true } else { false }
  }

  private static let (waiting, called, cancelled): (UInt8, UInt8, UInt8) = (0, 1, 2)

  /// Whether the watcher has been called or cancelled.
  var isDone: Bool { state.touched.load(ordering: .acquiring) != Self.waiting }

  /// Whether the watcher has been called: the target has ended.
  var wasCalled: Bool { state.touched.load(ordering: .acquiring) == Self.called }

  private func leaves(to next: UInt8) -> Bool {
    state.touched.compareExchange(expected: Self.waiting, desired: next, ordering: .acquiringAndReleasing).exchanged
  }

  func fire(_ end: ActorEnd) {
    guard leaves(to: Self.called) else { return }
    switch action.take() {
    case .tells(let tell)?: tell(end)
    case .leaves(let leave)?: _ = leave()
    case nil: break
    }
  }

  /// Fires a watcher `.leaves`, and returns what the table held.
  func leaveTable() -> (any Sendable)? {
    guard leaves(to: Self.called), case .leaves(let leave)? = action.take() else { return nil }
    return leave()
  }

  func cancel() {
    guard leaves(to: Self.cancelled) else { return }
    target.unwatch(self)
    action = nil
  }
}

/// A subscription to the end of another actor; see ``Mailbox/monitor(_:_:)``.
public final class ActorMonitor: Sendable {
  private let watchers: [ActorWatcher]
  init(_ watchers: [ActorWatcher]) { self.watchers = watchers }

  /// Cancels the subscription: no notice will be sent any more.
  ///
  /// A notice that was sent is in the mailbox. Never suspends. May be called on any thread, and repeatedly.
  public func cancel() { for watcher in watchers { watcher.cancel() } }
}

extension Mailbox {
  /// Watches for the end of another actor, and then puts the message that `notice` returns into this mailbox.
  ///
  /// ```swift
  /// mailbox.monitor(worker) { .workerEnded($0) }
  /// ```
  ///
  /// - The message is added exactly once, after the messages that the other actor sent before. If the other actor has
  ///   ended already, it is added at once.
  /// - A notice is never dropped for lack of room.
  /// - `notice` is called on the thread that finds the end. It must neither block nor suspend.
  /// - A supervised actor has ended when it will not be restarted.
  /// - When a supervisor restarts this actor, its monitors are cancelled.
  ///
  /// Does not suspend. Called by the body.
  @discardableResult
  public func monitor<Other>(
    _ other: ActorRef<Other>,
    _ notice: @escaping @Sendable (ActorEnd) -> Message
  ) -> ActorMonitor {
    let core = core
    let watcher = ActorWatcher(other.core, .tells { core.channel.insist(.notice(notice($0))) })
    return ActorMonitor([core.keep(watcher)])
  }

  /// Links this actor to another: if either is cancelled or fails for good, the other fails.
  ///
  /// This actor then fails with ``ActorMonitor/LinkedActorError``, and a supervisor may restart it. If the other actor
  /// has already been cancelled or has failed, this one fails at once. A stopped actor does not make its linked actors
  /// fail.
  ///
  /// The returned object removes the link. To get a message and not a failure, use ``monitor(_:_:)``. Does not suspend.
  /// Called by the body.
  @discardableResult
  public func link<Other>(_ other: ActorRef<Other>) -> ActorMonitor {
    let (mine, theirs) = (core, other.core)
    return ActorMonitor([
      mine.keep(ActorWatcher(theirs, .tells { mine.follow($0) })),
      mine.keep(ActorWatcher(mine, .tells { theirs.follow($0) })),
    ])
  }
}

extension ActorLife {
  /// Arms a watcher that is cancelled at the end of this life.
  ///
  /// Called on the actor's own coroutine. Watchers that are done are removed from time to time, so an actor that
  /// watches many short-lived actors keeps few.
  func keep(_ watcher: ActorWatcher) -> ActorWatcher {
    if watching.count >= 16, watching.count & (watching.count - 1) == 0 { watching.removeAll { $0.isDone } }
    watching.append(watcher)
    watcher.target.watch(watcher)
    return watcher
  }

  /// Fails this actor because a linked actor has ended, unless that actor was stopped.
  func follow(_ end: ActorEnd) {
    if case .stopped = end.exit { return }
    // Along a chain of links the first cause is passed on: an error around an error for each link would have no bound.
    if case .failed(let error as ActorMonitor.LinkedActorError) = end.exit { return endLife(.failed(error)) }
    endLife(.failed(ActorMonitor.LinkedActorError(end: end)))
  }
}

extension Channel {
  /// Adds a value whatever the bound is.
  ///
  /// Returns false if the channel is closed.
  @discardableResult
  func insist(_ element: Element) -> Bool {
    var storage: Element? = element
    return withUnsafeMutablePointer(to: &storage) { storage in
      var woken: UnsafeMutablePointer<Waiter>?
      lockWithRoom(for: 1)
      let isAccepted = state.insist(storage, &woken)
      lock.unlock()
      woken?.wake()
      return isAccepted
    }
  }
}

extension ChannelState {
  /// Adds a value whatever the limit is.
  ///
  /// Requires room in the memory of the ring.
  mutating func insist(
    _ storage: UnsafeMutablePointer<Element?>,
    _ woken: inout UnsafeMutablePointer<Waiter>?
  ) -> Bool {
    if isClosed { return false }
    if receivers.first != nil, let waiter = receivers.claimFirst() {
      waiter.storage(of: Element.self).initialize(to: storage.take())
      woken = waiter
      return true
    }
    ring.append(storage.take().unsafelyUnwrapped)
    return true
  }
}
