import Coroutine
import Dispatch

/// The verbs that wait.
///
/// The common rules are tested with every one of them: every public function of the library that suspends the calling
/// coroutine, but those that are another one by another name (`withLock` and `lock`, `co_await` of a job and of a
/// guarantee or of the signal to stop, `ActorGroup.tell` and `tell`). Not here, because their rules differ:
/// - `Mailbox.receive`, `Mailbox.forEach` and `Behavior.run`, which only the actor's own coroutine calls
///   (Actor/ActorEndTests.swift, Actor/MailboxExtrasTests.swift);
/// - the iteration of a channel by `for`, which cannot throw and ends at a cancellation
///   (Channel/ChannelIterationTests);
/// - `co_switch(to:)` to a loop of another library (Tests/CoroutineNIOTests), and the sockets
///   (Tests/CoroutineNetTests);
/// - `Job.blockingWait` and `Promise.blockingWait`, which block a thread, and `co_main`, which begins a program.
enum WaitingVerb: String, CaseIterable, Sendable {
  case join
  case outcome, cancelAndJoin
  case awaitJob
  case awaitPromise
  case awaitAsync
  case suspend
  case delay
  case zeroDelay
  case yield
  case switchQueue
  case blocking
  case readable
  case writable
  case scope
  case supervise
  case timeout
  case all
  case allSettled
  case any
  case race
  case awaitAsyncToEnd, isolated
  case select, send, receive, receiveAll, receiveCount, forEach
  case broadcast, watch
  case lock, readLock, writeLock, acquire, latch, group, condition, rate, once, singleFlight
  case tell, ask

  /// The verbs that can be made to wait until they are cancelled.
  ///
  /// A call of async code that waits to its end throws what that code throws.
  static let parking = allCases.filter { ![.zeroDelay, .yield, .switchQueue, .awaitAsyncToEnd].contains($0) }

  /// Whether a world has what the verb waits for in `park`.
  var isSimulated: Bool { ![.readable, .writable, .blocking, .awaitAsync].contains(self) }

  /// The operands of the verbs: all settled, finished and ready, so that no verb has to wait.
  struct Props: Sendable {
    let job: Job<Int>
    let promise = Promise.value(1)
    let queue = taggedQueue("props")
    let pipe = PipePair()
    let resident = Resident(on: taggedQueue("account"))
    let actor = co_actor(of: Question.self, mailbox: .bounded(1)) { mailbox in
      while let question = try mailbox.receive() { question() }
    }

    init() async throws {
      job = co_launch { 1 }
      _ = try await job.value
      pipe.put()
    }
  }

  /// Calls the verb so that it could finish at once.
  ///
  /// `trace` tells whether any body ran.
  func callWhereItCouldFinishAtOnce(_ props: Props, _ trace: Trace) throws {
    let (job, promise) = (props.job, props.promise)
    switch self {
    case .join: try job.join()
    case .outcome: try job.outcome()
    case .cancelAndJoin: try job.cancelAndJoin()
    case .awaitJob: _ = try co_await(job)
    case .awaitPromise: _ = try co_await(promise)
    case .awaitAsync: try co_await { trace("ran") }
    case .suspend:
      try co_suspend { (done: Resumer<Void>) in
        trace("ran")
        done.resume(())
      }
    case .delay: try co_delay(.nanoseconds(1))
    case .zeroDelay: try co_delay(.zero)
    case .yield: try co_yield()
    case .switchQueue: try co_switch(to: props.queue)
    case .blocking: try co_blocking { trace("ran") }
    case .readable: try co_untilReadable(props.pipe.reader)
    case .writable: try co_untilWritable(props.pipe.writer)
    case .scope: try co_scope { _ in trace("ran") }
    case .supervise: try co_scope(failures: .isolated) { _ in trace("ran") }
    case .timeout: try co_timeout(.seconds(60)) { trace("ran") }
    case .all: _ = try co_all([promise])
    case .allSettled: _ = try co_allSettled([promise])
    case .any: _ = try co_any([promise])
    case .race: _ = try co_race([promise])
    case .awaitAsyncToEnd: try co_awaitToEnd { trace("ran") }
    case .isolated: try co_isolated(props.resident) { _ in trace("ran") }
    case .select, .send, .receive, .receiveAll, .receiveCount, .forEach: try callChannel(trace)
    case .lock, .readLock, .writeLock, .acquire, .latch, .group, .condition, .rate, .once, .singleFlight:
      try callLock(trace)
    case .broadcast:
      let broadcast = Broadcast<Int>(1)
      let subscription = broadcast.subscribe()
      try broadcast.send(1)
      _ = try subscription.receive()
    case .watch: _ = try Watch(1).wait { $0 == 1 }
    case .tell: try props.actor.tell(Question())
    case .ask: try props.actor.ask { Question(reply: $0) }
    }
  }

  private func callChannel(_ trace: Trace) throws {
    let channel = Channel<Int>(1)
    if self != .send { _ = channel.trySend(1) }
    switch self {
    case .select: try co_select { channel.onReceive { _ in trace("ran") } }
    case .send: try channel.send(1)
    case .receive: _ = try channel.receive()
    case .receiveAll:
      channel.close()
      _ = try channel.receiveAll()
    case .receiveCount: _ = try channel.receive(count: 1)
    case .forEach:
      channel.close()
      try channel.forEach { _ in trace("ran") }
    default: preconditionFailure("\(self) is no verb of channels")
    }
  }

  private func callLock(_ trace: Trace) throws {
    let mutex = FairMutex()
    switch self {
    case .lock: try mutex.withLock { trace("ran") }
    case .readLock: try FairReadWriteLock().withReadLock { trace("ran") }
    case .writeLock: try FairReadWriteLock().withWriteLock { trace("ran") }
    case .acquire: try FairSemaphore(1, limit: .unbounded).acquire()
    case .latch: try Latch(0).wait()
    case .group: try WaitGroup().wait()
    case .condition: try mutex.withLock { try Condition(mutex).wait { true } }
    case .rate: try RateLimiter(1).acquire()
    case .once: try Once<Void>().run { trace("ran") }
    case .singleFlight: try SingleFlight<Int, Void>().run(1) { trace("ran") }
    default: preconditionFailure("\(self) is no verb of locks")
    }
  }

  /// Whether a call runs a closure.
  var runsBody: Bool {
    switch self {
    case .awaitAsync, .suspend, .blocking, .scope, .supervise, .timeout: true
    case .awaitAsyncToEnd, .isolated, .select, .forEach, .lock, .readLock, .writeLock, .once, .singleFlight: true
    default: false
    }
  }

  /// Calls the verb so that it waits until it is cancelled.
  func park() throws {
    let never = Promise<Int>()
    let pipe = PipePair()
    switch self {
    case .join, .outcome, .cancelAndJoin, .awaitJob:
      let end = Gate()
      // Begun: a job that is cancelled before that ends at once.
      let job = co_launch(start: .immediate) { try co_shield { try end.pass() } }
      defer { end.open() }
      switch self {
      case .join: try job.join()
      case .outcome: try job.outcome()
      case .cancelAndJoin: try job.cancelAndJoin()
      default: try co_await(job)
      }
    case .awaitPromise: _ = try co_await(never)
    case .awaitAsync: try co_await { try await Task.sleep(for: .seconds(3600)) }
    case .suspend:
      let kept = Locked<Resumer<Void>?>(nil)
      defer { withExtendedLifetime(kept) {} }
      try co_suspend { kept.current = $0 }
    case .delay: try co_delay(.seconds(3600))
    case .blocking:
      let end = DispatchSemaphore(value: 0)
      defer { end.signal() }
      try co_blocking { end.wait() }
    case .readable: try co_untilReadable(pipe.reader)
    case .writable:
      pipe.fill()
      try co_untilWritable(pipe.writer)
    case .scope: try co_scope { scope in scope.launch { try waitForCancellation() } }
    case .supervise: try co_scope(failures: .isolated) { scope in scope.launch { try waitForCancellation() } }
    case .timeout: try co_timeout(.seconds(3600)) { try waitForCancellation() }
    case .all: _ = try co_all([never])
    case .allSettled: _ = try co_allSettled([never])
    case .any: _ = try co_any([never])
    case .race: _ = try co_race([never])
    case .isolated: try co_isolated(Resident(on: taggedQueue("isolated"))) { _ in try waitForCancellation() }
    case .select, .send, .receive, .receiveAll, .receiveCount, .forEach: try parkInChannel()
    case .lock, .readLock, .writeLock, .acquire, .latch, .group, .condition, .rate, .once, .singleFlight:
      try parkInLock()
    case .broadcast: _ = try Broadcast<Int>(1).subscribe().receive()
    case .watch: _ = try Watch(1).wait { $0 == 2 }
    case .tell, .ask:
      let actor = co_actor(of: Question.self, mailbox: .bounded(1)) { _ in try waitForCancellation() }
      defer { actor.cancel() }
      if self == .ask { try actor.ask { Question(reply: $0) } }
      while true { try actor.tell(Question()) }
    case .zeroDelay, .yield, .switchQueue, .awaitAsyncToEnd: preconditionFailure("\(self) is not made to wait")
    }
    withExtendedLifetime(pipe) {}
  }

  private func parkInChannel() throws {
    let channel = Channel<Int>()
    switch self {
    case .select: try co_select { channel.onReceive { _ in } }
    case .send: try channel.send(1)
    case .receive: _ = try channel.receive()
    case .receiveAll: _ = try channel.receiveAll()
    case .receiveCount: _ = try channel.receive(count: 1)
    case .forEach: try channel.forEach { _ in }
    default: preconditionFailure("\(self) is no verb of channels")
    }
  }

  private func parkInLock() throws {
    let (mutex, readWrite) = (FairMutex(), FairReadWriteLock())
    switch self {
    case .lock:
      let holder = co_launch(start: .immediate) { try mutex.withLock { try waitForCancellation() } }
      defer { holder.cancel() }
      try mutex.lock()
    case .readLock, .writeLock:
      let holder = co_launch(start: .immediate) { try readWrite.withWriteLock { try waitForCancellation() } }
      defer { holder.cancel() }
      if self == .readLock { try readWrite.lockRead() } else { try readWrite.lockWrite() }
    case .acquire: try FairSemaphore(0, limit: .unbounded).acquire()
    case .latch: try Latch(1).wait()
    case .group:
      let group = WaitGroup()
      group.add()
      try group.wait()
    case .condition: try mutex.withLock { try Condition(mutex).wait { false } }
    case .rate:
      let limiter = RateLimiter(1, per: .seconds(3600))
      _ = limiter.tryAcquire()
      try limiter.acquire()
    case .once: try Once<Void>().run { try waitForCancellation() }
    case .singleFlight: try SingleFlight<Int, Void>().run(1) { try waitForCancellation() }
    default: preconditionFailure("\(self) is no verb of locks")
    }
  }
}

/// A message for an actor, which may ask for an answer.
struct Question: Sendable {
  var reply: Reply<Void>?
  func callAsFunction() { reply?(()) }
}

/// An actor that lives on a queue.
actor Resident {
  private let executor: CoroutineExecutor
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }

  init(on queue: DispatchQueue) { executor = CoroutineExecutor(queue) }
}
