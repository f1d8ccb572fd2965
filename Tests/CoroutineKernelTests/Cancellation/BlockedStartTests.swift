import Dispatch
import Synchronization
import Testing

@testable import Coroutine

/// What has not begun ends at once, although its queue is blocked.
///
/// Each test waits for that while it is.
@Suite("Cancelled before the start, on a queue that is blocked", .timeLimit(.minutes(10)))
struct BlockedStartTests {
  private typealias Joined = @Sendable (Job<Int>) async -> String

  private static let joins: [(String, Joined)] = [
    ("join", { job in (try? await onCoroutine { outcome { try job.join() } }) ?? "" }),
    ("co_await", { job in (try? await onCoroutine { outcome { try co_await(job) } }) ?? "" }),
    ("value", { job in await asyncOutcome { try await job.value } }),
    ("wait", { job in (try? await onOwnThread { outcome { try job.blockingWait() } }) ?? "" }),
    ("uncancelled", { job in await asyncOutcome { try await job.uncancelled.value } }),
    ("co_all", { job in (try? await onCoroutine { outcome { try co_all([job]) } }) ?? "" }),
    ("co_race", { job in (try? await onCoroutine { outcome { try co_race([job]) } }) ?? "" }),
    (
      "co_select",
      { job in
        let seen = try? await onCoroutine { () -> String in
          let seen = Trace()
          try co_select { job.onAwait { seen(outcome($0)) } }
          return seen.all.joined()
        }
        return seen ?? ""
      }
    ),
  ]

  @Test func `all who wait for the job get the reason, before the cancellation and after it`() async throws {
    let blocked = try await BlockedQueue()
    let ran = Flag()
    for start in [StartMode.queued, .lazy] {
      for (name, join) in Self.joins {
        let job = co_launch(on: blocked.queue, start: start) {
          ran.raise()
          return 1
        }
        let early = Task { await join(job) }
        await Task.yield()
        job.cancel(Oops("early"))
        #expect(job.isFinished, "\(name)")
        #expect(await early.value == "Oops(early)", "\(name)")
        #expect(await join(job) == "Oops(early)", "\(name)")
      }
    }
    try await blocked.releaseAndSettle()
    #expect(!ran.isRaised)
  }

  @Test func `the members that co_any and co_race cancel have ended`() async throws {
    let blocked = try await BlockedQueue()
    let seen = try await onCoroutine {
      let (fast, slow) = (co_launch { 1 }, co_launch(on: blocked.queue) { 2 })
      let first = try co_any([fast, slow])
      let (second, other) = (co_launch { 3 }, co_launch(on: blocked.queue) { 4 })
      return [first, try co_race([second, other]), slow.isFinished ? 1 : 0, other.isFinished ? 1 : 0]
    }
    #expect(seen == [1, 3, 1, 1])
  }

  @Test func `a Task that is cancelled as the last one that waits gets the job's end`() async throws {
    let blocked = try await BlockedQueue()
    let job = co_launch(on: blocked.queue) { 1 }
    let task = Task { await asyncOutcome { try await job.value } }
    await Task.yield()
    task.cancel()
    #expect(await task.value == "CancellationError")
    #expect(job.isFinished)
  }

  @Test func `handlers and observers are called, once`() async throws {
    let blocked = try await BlockedQueue()
    let trace = Trace()
    let handled = Gate()
    let job = co_launch(on: blocked.queue) { 1 }
    let observed = Gate()
    _ = job.observe {
      trace(outcome($0))
      observed.open()
    }
    job.finally { handled.open() }
    job.cancel()
    try await observed.value
    #expect(trace.all == ["CancellationError"])
    try await handled.value
    try await blocked.releaseAndSettle()
    #expect(trace.all == ["CancellationError"])
  }

  @Test func `on the main queue`() async throws {
    let blocked = try await BlockedQueue(.main)
    let job = co_launch(on: .main) { 1 }
    job.cancel()
    #expect(await asyncOutcome { try await job.value } == "CancellationError")
    try await blocked.releaseAndSettle()
  }

  @Test func `on the loop of another library`() async throws {
    let loop = Loop()
    let host = HostedScheduler(loop)
    let (isBlocked, release) = (Gate(), DispatchSemaphore(value: 0))
    loop.execute {
      isBlocked.open()
      release.wait()
    }
    try await isBlocked.value
    let job = co_launch(on: host) { 1 }
    job.cancel()
    #expect(await asyncOutcome { try await job.value } == "CancellationError")
    let seen = await asyncOutcome {
      try await onCoroutine {
        try co_scope { scope in
          scope.launch(on: host) {}
          scope.cancel(Oops("scope"))
          try co_delay(.seconds(60))
        }
      }
    }
    #expect(seen == "Oops(scope)")
    release.signal()
  }

  @Test func `on a pool whose workers are all blocked`() async throws {
    let pool = ownWorkers("blocked", count: 2)
    let release = DispatchSemaphore(value: 0)
    let ran = Flag()
    func launch(_ worker: Int, _ body: @escaping @Sendable () -> Void) -> Job<Void> {
      let site = LaunchSite(file: #fileID, line: #line)
      let scheduler = pool.workers[worker].forRecord()
      let job = Job(scheduler: scheduler, name: nil, stack: .standard, launchSite: site, body: body)
      job.launch(.queued, holding: nil)
      return job
    }
    let blockers = [0, 1].map { worker in launch(worker) { release.wait() } }
    func hasBegun(_ job: Job<Void>) -> Bool {
      job.record.pointee.waitKind.load(ordering: .relaxed) != WaitKind.start.rawValue
    }
    while !blockers.allSatisfy(hasBegun) { await Task.yield() }
    // The pool has spare workers for such a case, after some milliseconds. A job that is cancelled does not need them;
    // one that such a worker has begun before, on a slow machine, ends by itself.
    let jobs = (0..<8).map { index in launch(index % 2) { if index > 8 { ran.raise() } } }
    for job in jobs { job.cancel() }
    for job in jobs { #expect(job.isFinished || hasBegun(job)) }
    for _ in blockers { release.signal() }
    for job in blockers { try await job.value }
    #expect(!ran.isRaised)
  }

  @Test func `an actor has ended, and answers nothing`() async throws {
    let blocked = try await BlockedQueue()
    for cancels in [{ $0.cancel() }, { $0.job.cancel() }] as [@Sendable (ActorRef<Int>) -> Void] {
      let dropped = Trace()
      let isDropped = Gate()
      let note: @Sendable (Int) -> Void = {
        dropped("\($0)")
        if $0 == 1 { isDropped.open() }
      }
      let actor = co_actor(of: Int.self, on: blocked.queue, onUndelivered: note) { _ in }
      let seen = try await onCoroutine { () -> [String] in
        try actor.tell(1)
        cancels(actor)
        return [outcome { try actor.job.join() }, outcome { try actor.tell(2) }]
      }
      #expect(seen == ["CancellationError", "ActorStoppedError"])
      try await isDropped.value
      #expect(Set(dropped.all).isSuperset(of: ["1"]))
    }
  }

  @Test func `a supervisor whose actors have not begun ends`() async throws {
    let blocked = try await BlockedQueue()
    let supervisor = Supervisor()
    let actor = supervisor.actor(of: Int.self, on: blocked.queue) { _ in }
    supervisor.cancel()
    #expect(await asyncOutcome { try await actor.job.value } == "CancellationError")
    #expect(await asyncOutcome { try await supervisor.job.value } == "CancellationError")
  }

  @Test func `the captures are released by the queue when it comes to the job, and not by cancel`() async throws {
    let blocked = try await BlockedQueue()
    let trace = Trace()
    let released = Gate()
    let job = cancelled(on: blocked.queue) {
      trace("\(currentTag ?? "nowhere") \(Carrier.current != nil)")
      released.open()
    }
    #expect(await asyncOutcome { try await job.value } == "CancellationError")
    #expect(trace.all.isEmpty)
    blocked.release()
    try await released.value
    #expect(trace.all == ["blocked true"])
  }

  @Test func `a lock that cancel is called under may be taken by what the captures release`() async throws {
    let blocked = try await BlockedQueue()
    let (locked, released) = (Locked(0), Gate())
    locked.withLock { count in
      count += 1
      _ = cancelled(on: blocked.queue) {
        locked.withLock { $0 += 1 }
        released.open()
      }
    }
    blocked.release()
    try await released.value
    #expect(locked.current == 2)
  }

  /// The ways in which code of the program hears of the end of what has not begun.
  enum Hearing: CaseIterable, Sendable { case observer, copy, copyOfCopy, message, waitingSender, watcher }

  @Test(arguments: Hearing.allCases)
  func `a lock that cancel is called under may be taken by all code that is told`(_ hearing: Hearing) async throws {
    let blocked = try await BlockedQueue()
    let (locked, heard) = (Locked(0), Gate())
    let hear: @Sendable () -> Void = {
      locked.withLock { $0 += 1 }
      heard.open()
    }
    let job = co_launch(on: blocked.queue) { 1 }
    let copy = hearing == .copyOfCopy ? job.uncancelled.uncancelled : job.uncancelled
    let note: @Sendable (Int) -> Void = { _ in hear() }
    let actor = co_actor(of: Int.self, on: blocked.queue, mailbox: 1, onUndelivered: note) { _ in }
    let isReady = Gate()
    var (others, handles): ([AnyJob], [ActorRef<Int>]) = ([], [actor])
    switch hearing {
    case .observer: _ = job.observe { _ in hear() }
    case .copy, .copyOfCopy: _ = copy.observe { _ in hear() }
    case .message: try await onCoroutine { try actor.tell(1) }
    case .waitingSender:
      let sender = co_launch {
        try actor.tell(1)
        isReady.open()
        try actor.tell(2)
      }
      try await isReady.value
      while !sender.record.seemsWaiting { await Task.yield() }
      others.append(sender)
    case .watcher:
      let watcher = co_actor(of: Int.self) { mailbox in
        mailbox.monitor(actor) { _ in
          hear()
          return 1
        }
        isReady.open()
        _ = try mailbox.receive()
      }
      try await isReady.value
      others.append(watcher.job)
      handles.append(watcher)
    }
    locked.withLock { count in
      count += 1
      job.cancel()
      actor.job.cancel()
    }
    try await heard.value
    for other in others { while !other.completion.isSettled { await Task.yield() } }
    #expect(locked.current > 1)
    withExtendedLifetime(handles) {}
  }

  @Test func `an observer that blocks keeps neither cancel nor those who wait`() async throws {
    let blocked = try await BlockedQueue()
    let (release, ended) = (DispatchSemaphore(value: 0), Gate())
    let job = co_launch(on: blocked.queue) { 1 }
    _ = job.observe { _ in
      release.wait()
      ended.open()
    }
    let joiner = co_launch { outcome { try job.join() } }
    let gatherer = co_launch { outcome { try co_all([job]) } }
    while !joiner.record.seemsWaiting || !gatherer.record.seemsWaiting { await Task.yield() }
    job.cancel()
    #expect(try await joiner.value == "CancellationError")
    #expect(try await gatherer.value == "CancellationError")
    #expect(await asyncOutcome { try await job.value } == "CancellationError")
    release.signal()
    try await ended.value
  }

  private func cancelled(on queue: DispatchQueue, _ onRelease: @escaping @Sendable () -> Void) -> Job<Void> {
    let held = Tracked(onRelease)
    let job = co_launch(on: queue) { held.use() }
    job.cancel()
    return job
  }

  @Test func `those that are launched later begin in their order when the queue goes on`() async throws {
    let blocked = try await BlockedQueue()
    let trace = Trace()
    let jobs = (0..<6).map { number in co_launch(on: blocked.queue) { trace("\(number)") } }
    for number in [0, 2, 5] { jobs[number].cancel() }
    blocked.release()
    for job in jobs { _ = try? await job.value }
    #expect(trace.all == ["1", "3", "4"])
  }

  @Test func `the dump says that the job was cancelled, until the queue has come to it`() async throws {
    let blocked = try await BlockedQueue()
    let job = co_launch(on: blocked.queue, name: "cancelled before the start") {}
    job.cancel()
    #expect(dump(of: blocked.queue).contains("\"cancelled before the start\" not started"))
    try await blocked.releaseAndSettle()
    #expect(!dump(of: blocked.queue).contains("\"cancelled before the start\""))
  }
}
