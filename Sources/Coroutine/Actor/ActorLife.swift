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
//   asks, refusesAsks, lateCount   under `asksLock`, with the cells of this actor's askers (ActorRef+Ask.swift)
//   scope, isResting, verdict,
//   ending, watchers               under `lock`
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

  /// The watchers that this life has created; they are cancelled at its end.
  @exclusivity(unchecked) final var watching: [ActorWatcher] = []

  /// The number of handles.
  ///
  /// The mailbox closes when the last one is released.
  // Not shared: only the last release shows, by the mailbox.
  final let handles = Atomic<Int>(0)

  init(_ supervision: Supervision?) { self.supervision = supervision }

  deinit { Inspection.letFinish(self) }

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

  // MARK: Living

  /// Stores the job that will run this actor, before any other thread knows either.
  final func attach(_ job: Job<Void>) {
    self.job = job
    record = job.record
    _ = job.completion.addKnown(ActorEndCallback(self), observes: false)
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

  /// Called when the job is cancelled before it ran, before that is published; returns what runs users' code.
  func willBeDropped() -> @Sendable () -> Void {
    failAsks()
    return beginDropAll()
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
    actor.finish(.failure(CancellationError()))
    actor.supervision?.isGone(actor)
  }
}

extension ActorLife: OwnedSource {
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
