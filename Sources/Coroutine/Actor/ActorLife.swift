import Synchronization

// What an actor is, whatever its messages: a job that runs its body, the questions it has not answered, and its end.
//
//   LIVING --- the body returns, throws, or its job is cancelled ---> ENDING --- all are told ---> ENDED
//
// Who owns what
//   job, record              set before anyone else knows the actor; never changed
//   asks, isDeaf, lateCount  under `asksLock`, with every AskNode and AskCell of this actor (ActorAsk.swift)
//   scope, verdict, exit     under `lock`
//
// Invariants
//  1. `exit` is written once, under the lock, and only after the mailbox is closed and empty and no question is pending: who
//     has joined the job, or has been told of the end, finds the actor deaf.
//  2. `scope` is set while the body and what it launched run, so that a life can be ended without ending the job.
//  3. `finish` is called by the job's last act, and once more by its completion, for a job that was cancelled before it
//     started and whose body never ran; the first call counts.
//
// The actor holds its job and the job's body holds the actor: the circle goes with the body, at the job's end, which a job
// that was launched always reaches.

@usableFromInline
class ActorLife: @unchecked Sendable {
  // Sound because each mutable property names its guard, above.
  @exclusivity(unchecked) private(set) final var job: Job<Void>?
  /// The job's record, to recognise the actor's own coroutine.
  @exclusivity(unchecked) @usableFromInline private(set) final var record = JobRef(bitPattern: 16).unsafelyUnwrapped

  @usableFromInline final let asksLock = SpinLock()
  @exclusivity(unchecked) @usableFromInline final var asks = WaitList()
  @exclusivity(unchecked) @usableFromInline final var isDeaf = false
  @exclusivity(unchecked) @usableFromInline final var lateCount = 0

  final let lock = SpinLock()
  @exclusivity(unchecked) private final var scope: Scope?
  @exclusivity(unchecked) private final var exit: ActorExit?

  /// How many handles there are: with the last one the mailbox closes.
  final let handles = Atomic<Int>(0)

  init() {}

  /// The job that runs this actor; launched by `start`.
  final func prepare(_ job: Job<Void>) {
    self.job = job
    record = job.record
    _ = job.completion.add(ActorEndCallback(self), observes: false)
  }

  // MARK: For subclasses

  /// Runs the body once.
  ///
  /// On the actor's own coroutine.
  func live(in scope: Scope) throws {}

  /// Closes the mailbox: no more messages; those that are there remain.
  func close() {}

  /// Closes the mailbox and drops what is in it; releases the body if nobody will run it again.
  func dropAll() {}

  // MARK: Living

  /// The job's body.
  final func run() throws {
    let outcome = oneLife()
    finish(outcome)
    try outcome.get()
  }

  private final func oneLife() -> Result<Void, any Error> {
    defer { lock.withLock { scope = nil } }
    return Result {
      try co_scope { scope in
        lock.withLock { self.scope = scope }
        try live(in: scope)
      }
    }
  }

  // MARK: Ending

  /// Fails every question that is pending, and every one to come.
  final func fallSilent() {
    var woken = WaitList()
    asksLock.lock()
    isDeaf = true
    while let node = asks.claimFirst() {
      node.askNode.detach(.stopped)
      woken.append(node)
    }
    asksLock.unlock()
    while let node = woken.popFirst() { node.wake() }
  }

  /// Ends the actor now: what is in the mailbox is dropped, questions fail, and the body's waits throw.
  final func cancel() {
    fallSilent()
    dropAll()
    job?.cancel()
  }

  /// The end: everybody is told.
  final func finish(_ outcome: Result<Void, any Error>) {
    fallSilent()
    dropAll()
    lock.lock()
    guard exit == nil else { return lock.unlock() }
    exit = exitReason(outcome)
    lock.unlock()
  }

  private final func exitReason(_ outcome: Result<Void, any Error>) -> ActorExit {
    let isCancelled = job?.isCancelled ?? false
    switch outcome {
    case .success: return isCancelled ? .cancelled : .stopped
    case .failure(let error):
      return isCancelled && (job?.isOwnCancellation(error) ?? false) ? .cancelled : .failed(error)
    }
  }
}

/// The end of a job that was cancelled before it ran.
private final class ActorEndCallback: WaitCallback, @unchecked Sendable {
  // Sound because `actor` never changes.
  private let actor: ActorLife
  init(_ actor: ActorLife) {
    self.actor = actor
    super.init()
  }
  override func fire() { actor.finish(.failure(CancellationError())) }
}

/// How an actor ended.
public enum ActorExit: Sendable {
  /// Its body returned: it was stopped and has handled what was in its mailbox, or had enough.
  case stopped
  /// It was cancelled.
  case cancelled
  /// Its body threw, and nobody has restarted it.
  case failed(any Error)
}
