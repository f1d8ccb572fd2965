import Synchronization

// What an actor is, whatever its messages: a job that runs its body, once or, supervised, one life after the other; the
// questions that it has not answered; and its end.
//
//            +------------- .restart -------------+
//            v                                    |
//   --> LIVING --- its body has returned ---> RESTING --- .end, or it was cancelled ---> ENDING --> ENDED
//          |       or thrown, and it is           (waits for its supervisor's decision)    ^
//          |       supervised                                                              |
//          +--- the same, unsupervised; it was cancelled; it was stopped and has drained --+
//
// Who owns what
//   job, record, supervision       set before anyone else knows the actor; never changed
//   asks, isDeaf, lateCount        under `asksLock`, with every AskWaiter and AskCell of this actor (ActorRef+Ask.swift)
//   scope, isResting, verdict,
//   ending, watchers               under `lock`
//   watching                       the actor's own turn
//
// Invariants
//  1. `ending` is written once, under the lock, and only after the mailbox is closed and empty and no question is pending: who
//     has joined the job, or has been told of the end, finds the actor deaf.
//  2. `scope` is set while the body and what it launched run, so that a life can be ended without ending the job. A verdict
//     that is passed on an actor that lives ends that life, also where the scope is not open yet: who opens it finds the verdict.
//     A verdict on an actor that rests is void: that life is over.
//  3. `finish` is called by the job's last act, and once more by its completion, for a job that was cancelled before it
//     started and whose body never ran; the first call counts.
//  4. A watcher is in `watchers` until the end or until it is called off. Whoever takes it out, under the lock, decides: the end
//     calls it once, a calling off never. A watcher that comes after the end is called by who brings it; one that was called
//     off before it came is not taken in.
//
// The actor holds its job and the job's body holds the actor: the circle goes with the body, at the job's end, which a job
// that was launched always reaches.

@usableFromInline
class ActorLife: @unchecked Sendable {
  // Sound because each mutable property names its guard, above.
  @exclusivity(unchecked) private(set) final var job: Job<Void>?
  /// The job's record, to recognise the actor's own coroutine.
  @exclusivity(unchecked) @usableFromInline private(set) final var record = JobRef(bitPattern: 16).unsafelyUnwrapped
  final let supervision: Supervision?

  @usableFromInline final let asksLock = SpinLock()
  @exclusivity(unchecked) @usableFromInline final var asks = WaitQueue()
  @exclusivity(unchecked) @usableFromInline final var isDeaf = false
  @exclusivity(unchecked) @usableFromInline final var lateCount = 0

  final let lock = SpinLock()
  @exclusivity(unchecked) private final var scope: Scope?
  @exclusivity(unchecked) private final var isResting = false
  @exclusivity(unchecked) private final var verdict: Verdict?
  @exclusivity(unchecked) private final var ending: ActorEnd?
  @exclusivity(unchecked) private(set) final var watchers: [ActorWatcher] = []

  /// What this life watches, to be called off with it.
  @exclusivity(unchecked) final var watching: [ActorWatcher] = []

  /// How many handles there are: with the last one the mailbox closes.
  final let handles = Atomic<Int>(0)

  init(_ supervision: Supervision?) { self.supervision = supervision }

  // MARK: For subclasses

  /// Runs the body once.
  ///
  /// On the actor's own coroutine.
  func live(in scope: Scope) throws {}

  /// Whether a body that returns now has done all that it was there for, because it was stopped.
  var hasDrained: Bool { false }

  /// Closes the mailbox: no more messages; those that are there remain.
  func close() {}

  /// Closes the mailbox and drops what is in it.
  func dropAll() {}

  /// Between two lives, on the actor's own turn: keeps what belongs to the actor, forgets what belonged to its life.
  func prepareNextLife() {}

  /// Before the end becomes known.
  func windUp() {}

  // MARK: Living

  /// Takes the job that is to run this actor, before anyone else knows of either.
  final func adopt(_ job: Job<Void>) {
    self.job = job
    record = job.record
    _ = job.completion.add(ActorEndCallback(self), observes: false)
  }

  /// Gets a job going that has been prepared; one that was cancelled since has gone already.
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

  /// False: the actor has been asked to end, so there is nothing to decide.
  private final var mayLiveOn: Bool { !(job?.isCancelled ?? true) }

  /// Lets a life that is to follow begin.
  ///
  /// The supervisor, before it sends `.restart`: from here on the actor counts as living.
  final func awake() { lock.withLock { isResting = false } }

  /// Ends the present life: its waits throw.
  final func endLife(_ verdict: Verdict) {
    lock.lock()
    guard !isResting, ending == nil, self.verdict == nil else { return lock.unlock() }
    self.verdict = verdict
    let scope = scope
    lock.unlock()
    scope?.cancel(verdict.error)
  }

  // MARK: Ending

  /// Fails every question that is pending, and every one to come.
  final func fallSilent() {
    var woken = WaitQueue()
    asksLock.lock()
    isDeaf = true
    while let waiter = asks.claimFirst() {
      waiter.askNode.detach(.stopped)
      woken.append(waiter)
    }
    asksLock.unlock()
    while let waiter = woken.popFirst() { waiter.wake() }
  }

  /// No more messages, none left, and no question without its answer.
  final func becomeDeaf() {
    fallSilent()
    dropAll()
  }

  /// Ends the actor now: what is in the mailbox is dropped, questions fail, and the body's waits throw.
  ///
  /// The job comes before the mailbox: closed first, a mailbox would tell a body that waits at it of a stop.
  final func cancel() {
    fallSilent()
    job?.cancel()
    dropAll()
  }

  /// The end: everybody is told.
  final func finish(_ outcome: Result<Void, any Error>) {
    if lock.withLock({ ending != nil }) { return }
    windUp()
    becomeDeaf()
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

  /// Calls the watcher at the end, or at once where that has been.
  final func watch(_ watcher: ActorWatcher) {
    lock.lock()
    guard let ending else {
      // Who calls it off changes its state first and then comes here: seen done, it would never be taken out.
      if !watcher.isDone {
        watcher.launchSite = watchers.count
        watchers.append(watcher)
      }
      return lock.unlock()
    }
    lock.unlock()
    watcher.fire(ending)
  }

  /// Calls a watcher off; too late, it does nothing.
  final func unwatch(_ watcher: ActorWatcher) {
    lock.lock()
    if let launchSite = watcher.launchSite, launchSite < watchers.count, watchers[launchSite] === watcher {
      watchers.swapAt(launchSite, watchers.count - 1)
      watchers[launchSite].launchSite = launchSite
      watchers.removeLast()
      watcher.launchSite = nil
    }
    lock.unlock()
  }

  private final func forgetWatching() {
    for watcher in watching { watcher.cancel() }
    watching = []
  }
}

/// Why a life is ended before its time.
enum Verdict {
  /// The supervisor wants to begin anew.
  case restart
  /// The actor is to fail with this.
  case failed(any Error)

  var error: any Error {
    switch self {
    case .restart: CancellationError()
    case .failed(let error): error
    }
  }
}

/// The end of a job, also of one that was cancelled before it ran.
private final class ActorEndCallback: WaitCallback, @unchecked Sendable {
  // Sound because `actor` never changes.
  private let actor: ActorLife
  init(_ actor: ActorLife) {
    self.actor = actor
    super.init()
  }
  override func fire() {
    actor.finish(.failure(CancellationError()))
    actor.supervision?.isGone(actor)
  }
}
