import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

/// A wait that would not end by itself, for a source that lives as long as the form.
enum GivenUpForm {
  /// The wait of a coroutine, which the test cancels, or ends by a deadline.
  case coroutine(_ name: String, _ wait: @Sendable () throws -> Void)
  /// The wait of a Task, which the test cancels.
  case task(_ name: String, _ wait: @Sendable () async throws -> Void)
  /// A wait that the form itself gives up.
  case whole(_ name: String, _ round: @Sendable () throws -> Void)

  var name: String {
    switch self {
    case .coroutine(let name, _), .task(let name, _), .whole(let name, _): name
    }
  }
}

/// An Awaitable of a program, which keeps its observers until it is told to forget them.
final class Download: Awaitable {
  private let observers = Locked<[Int: @Sendable (Result<Int, any Error>) -> Void]>([:])
  private let last = Atomic(0)

  func observe(_ completion: @escaping @Sendable (Result<Int, any Error>) -> Void) -> AwaitableObservation {
    let number = last.wrappingAdd(1, ordering: .relaxed).newValue
    observers.withLock { $0[number] = completion }
    return AwaitableObservation { [self] in observers.withLock { _ = $0.removeValue(forKey: number) } }
  }
}

/// The forms, in groups.
///
/// Each group makes its sources once.
///
/// Not here is `Task.sleep`: Swift's own timers stay until their time. Neither is a promise with a handler of the
/// program's, `promise.then { }`: its promise is that the handler runs, also if nothing refers to it. So are
/// `timeout`, which cancels the work, and `losers: .cancelled`. Given up by a cancellation they leave at once, and
/// that is here.
enum GivenUpGroup: String, CaseIterable, Codable, Sendable {
  case jobs, jobCopies, promises, copies, combinators, decided, links, channels, locks, structure, actors, tasks,
    switches

  func forms() throws -> [GivenUpForm] {
    switch self {
    case .jobs: try jobs(neverEnding())
    case .jobCopies: copies("job.uncancelled", try neverEnding()) { $0.uncancelled }
    case .promises: promises(Promise<Int>())
    case .copies: copies("promise.uncancelled", Promise<Int>()) { $0.uncancelled }
    case .combinators: combinators(Promise<Int>(), Promise<Int>())
    case .decided: decided(Promise<Int>())
    case .links: links(Promise<Int>())
    case .channels: channels()
    case .locks: try locks()
    case .structure: try structure()
    case .actors: try actors()
    case .tasks: try tasks()
    case .switches: try switches()
    }
  }

  /// A job that never ends by itself.
  ///
  /// It runs up to its wait.
  private func neverEnding() throws -> Job<Int> {
    let job = co_launch(start: .immediate) { () throws -> Int in
      try waitForCancellation()
      return 1
    }
    return job
  }

  /// Selects a source, and gives it up for a timeout.
  private func selecting<Value: Sendable>(_ name: String, _ source: @escaping @Sendable () -> some Awaitable<Value>)
    -> [GivenUpForm]
  {
    [
      .coroutine("\(name), selected") { try co_select { source().onAwait { _ in } } },
      .whole("\(name), selected until a timeout") {
        try co_select {
          source().onAwait { _ in }
            .onTimeout(.nanoseconds(1)) {}
        }
      },
    ]
  }

  /// Every way to wait for an Awaitable.
  private func waits<Source: Awaitable<Int>>(_ name: String, _ source: @escaping @Sendable () -> Source)
    -> [GivenUpForm]
  {
    selecting(name, source) + [
      .coroutine("co_await of \(name)") { _ = try co_await(source()) },
      .coroutine("co_all of \(name)") { _ = try co_all([source(), source()]) },
      .coroutine("co_allSettled of \(name)") { _ = try co_allSettled([source(), source()]) },
      .coroutine("co_any of \(name)") { _ = try co_any([source(), source()]) },
      .coroutine("co_race of \(name)") { _ = try co_race([source(), source()]) },
      .whole("\(name), observed") { source().observe { _ in }.cancel() },
    ]
  }

  // MARK: Jobs and promises

  private func jobs(_ job: Job<Int>) -> [GivenUpForm] {
    // Not as the only consumer: a Task that is cancelled would cancel the job.
    let consumer = job.observe { _ in }
    return waits("a job") { job } + [
      .coroutine("join") { _ = try job.join() },
      .task("the value of a job") {
        withExtendedLifetime(consumer) {}
        _ = try await job.value
      },
    ]
  }

  private func copies<Source: Sendable>(
    _ name: String,
    _ source: Source,
    _ copy: @escaping @Sendable (Source) -> Promise<Int>
  ) -> [GivenUpForm] {
    waits(name) { copy(source) } + combined(name) { copy(source) } + [
      .task("the value of \(name)") { _ = try await copy(source).value },
      .whole("\(name), dropped") { _ = copy(source) },
      .whole("\(name) of \(name), dropped") { _ = copy(source).uncancelled.uncancelled },
      .whole("\(name), cancelled") { copy(source).cancel() },
      .whole("\(name), fulfilled from outside") { copy(source).fulfill(1) },
      .whole("a link of \(name), cancelled") { copy(source).then { $0 }.cancel() },
      .whole("\(name), followed and cancelled") {
        let follower = Promise<Int>()
        follower.follow(copy(source))
        follower.cancel()
      },
      .coroutine("a link of \(name)") { _ = try co_await(copy(source).then { $0 }) },
      .coroutine("\(name) without its value") { try co_await(copy(source).asVoid()) },
      .whole("\(name) without its value, dropped") { _ = copy(source).asVoid() },
      .coroutine("a guarantee of \(name)") { _ = try co_await(Guarantee(copy(source)).asVoid()) },
      .coroutine("\(name) with a timeout") { _ = try co_await(copy(source).timeout(.seconds(3600))) },
    ]
  }

  private func promises(_ promise: Promise<Int>) -> [GivenUpForm] {
    let guarantee = Guarantee(promise)
    let progress = ProgressPromise<Int>()
    let downloads = Download()
    return waits("a promise") { promise } + waits("a guarantee") { guarantee } + waits("a Download") { downloads } + [
      .task("the value of a promise") { _ = try await promise.value },
      .task("the value of a guarantee") { _ = try await guarantee.value },
      .coroutine("a loop over progress") {
        for _ in progress {}
        try co_checkCancelled()
      },
      .task("a loop of a Task over progress") { for try await _ in progress {} },
      .coroutine("a callback") {
        let kept = Locked<Resumer<Int>?>(nil)
        _ = try co_suspend(onCancel: { kept.current = nil }) { kept.current = $0 }
      },
      .coroutine("Promise.after") { try co_await(Promise.after(.seconds(3600))) },
    ]
  }

  /// Combinators of a source, and what the combinators are awaited by.
  private func combined(_ name: String, _ source: @escaping @Sendable () -> Promise<Int>) -> [GivenUpForm] {
    let combinators: [(String, @Sendable () -> AnyPromise)] = [
      ("race", { Promise.race([source(), source()]) }), ("any", { Promise.any([source(), source()]) }),
      ("all", { Promise.all([source(), source()]) }), ("allSettled", { Promise.allSettled([source(), source()]) }),
      ("all by keys", { Promise.all(["a": source(), "b": source()]) }),
      ("all with names", { Promise.all(named: ["a": source(), "b": source()]) }),
      ("all of different types", { Promise.all(source(), source().asVoid()) }), ("&&&", { source() &&& source() }),
      ("|||", { source() ||| source().asVoid() }), ("a race of races", { .nested(source) }),
    ]
    return combinators.flatMap { combinator, make -> [GivenUpForm] in
      [
        .whole("\(combinator) of \(name), dropped") { _ = make() },
        .whole("\(combinator) of \(name), cancelled") { make().cancel() },
        .coroutine("\(combinator) of \(name)") { try make().awaited() },
      ]
    }
  }

  private func combinators(_ one: Promise<Int>, _ other: Promise<Int>) -> [GivenUpForm] {
    combined("promises") { one }
      + selecting("race of promises") { Promise.race([one, other]) }
      + selecting("any of promises") { Promise.any([one, other]) }
      + selecting("all of promises") { Promise.all([one, other]) }
      + selecting("race of races of promises") { Promise.race([Promise.race([one, other]), other]) } + [
        .whole("race of promises that cancels, cancelled") {
          Promise.race([one.uncancelled, other.uncancelled], losers: .cancelled).cancel()
        },
        .whole("race of promises, observed") { Promise.race([one, other]).observe { _ in }.cancel() },
        .task("the value of a race") { _ = try await Promise.race([one, other]).value },
      ]
  }

  /// Combinators that another member has decided.
  private func decided(_ promise: Promise<Int>) -> [GivenUpForm] {
    let failed = Promise<Int>.failure(Oops())
    failed.ignore()
    func decided(_ name: String, _ make: @escaping @Sendable () -> AnyPromise) -> GivenUpForm {
      .whole("\(name), decided") { make().ignore() }
    }
    return [
      decided("race") { Promise.race([promise, .value(1)]) },
      decided("race of copies") { Promise.race([promise.uncancelled, .value(1)]) },
      decided("any of copies") { Promise.any([promise.uncancelled, .value(1)]) },
      decided("all of copies") { Promise.all([promise.uncancelled, failed]) },
      decided("all with names") { Promise.all(named: ["a": promise, "b": failed]) },
      decided("&&&") { promise.uncancelled &&& failed },
      decided("|||") { promise.uncancelled ||| Promise<Bool>.value(true) },
      decided("all, bounded") { Promise.all(of: 0..<2, concurrently: 2) { $0 == 0 ? promise : failed } },
      .whole("a race that is decided later") {
        let other = Promise<Int>()
        let race = Promise.race([promise.uncancelled, other])
        other.fulfill(1)
        _ = try co_await(race)
      },
      .whole("an any that is decided later") {
        let other = Promise<Int>()
        let any = Promise.any([promise.uncancelled, other])
        other.fulfill(1)
        _ = try co_await(any)
      },
      .whole("co_race, decided") { _ = try co_race([promise.uncancelled, .value(1)]) },
      .whole("co_any, decided") { _ = try co_any([promise.uncancelled, .value(1)]) },
      .whole("a select, decided") {
        let other = Promise<Int>.value(1)
        try co_select {
          promise.uncancelled.onAwait { _ in }
          other.onAwait { _ in }
        }
      },
    ]
  }

  private func links(_ promise: Promise<Int>) -> [GivenUpForm] {
    [
      .coroutine("then") { _ = try co_await(promise.then { $0 }) },
      .coroutine("then of a promise") { _ = try co_await(Promise.value(1).then { _ in promise }) },
      .coroutine("recover") { _ = try co_await(promise.recover { _ in 1 }) },
      .coroutine("tap and ensure") { _ = try co_await(promise.tap { _ in }.ensure {}) },
      .coroutine("timeout") { _ = try co_await(promise.timeout(.seconds(3600))) },
      .coroutine("delay") { _ = try co_await(promise.delay(.seconds(3600))) },
      .coroutine("retry") { _ = try co_await(Promise.retry(attempts: 2) { _ in promise }) },
      .coroutine("pause of a retry") {
        _ = try co_await(Promise<Int>.retry(attempts: 2, delay: .constant(.seconds(3600))) { _ in .failure(Oops()) })
      },
      .coroutine("all, bounded") {
        _ = try co_await(Promise.all(of: 0..<3, concurrently: 2) { _ in promise })
      },
      .coroutine("allSettled, bounded") {
        _ = try co_await(Promise.allSettled(of: 0..<3, concurrently: 2) { _ in promise })
      },
    ]
  }

  // MARK: The rest

  private func channels() -> [GivenUpForm] {
    let (empty, full) = (Channel<Int>(), Channel<Int>(1))
    _ = full.trySend(1)
    return [
      .coroutine("receive") { _ = try empty.receive() },
      .coroutine("receiveAll") { _ = try empty.receiveAll() },
      .coroutine("receive(count:)") { _ = try empty.receive(count: 2) },
      .coroutine("forEach") { try empty.forEach { _ in } },
      .coroutine("send") { try full.send(1) },
      .coroutine("a rendezvous") { try Channel<Int>().send(1) },
      .coroutine("a select of channels") {
        try co_select {
          empty.onReceive { _ in }
          full.onSend(1) {}
        }
      },
      .whole("a select of channels until a timeout") {
        try co_select {
          empty.onReceive { _ in }
          full.onSend(1) {}
            .onTimeout(.nanoseconds(1)) {}
        }
      },
      .task("receive by a Task") { for try await _ in empty {} },
      .coroutine("a generator's step") {
        let steps = co_sequence { (yield: Yielder<Int, Never>) in
          _ = try empty.receive()
          try yield(1)
        }
        _ = try steps.step()
      },
      .task("asyncElements") {
        let steps = co_sequence { (yield: Yielder<Int, Never>) in
          _ = try empty.receive()
          try yield(1)
        }
        for try await _ in steps.asyncElements() {}
      },
      .coroutine("co_sequence of a channel") {
        _ = try co_sequence(AsyncStream<Int> { _ in }).step()
      },
    ]
  }

  private func locks() throws -> [GivenUpForm] {
    let (mutex, readWrite, semaphore) = (FairMutex(), FairReadWriteLock(), FairSemaphore(0, limit: .unbounded))
    let (condition, latch, group, once) = (Condition(mutex), Latch(1), WaitGroup(), Once<Int>())
    let (flights, limiter) = (SingleFlight<Int, Int>(), RateLimiter(1, per: .seconds(3600)))
    group.add()
    _ = limiter.tryAcquire()
    let conditioned = FairMutex()
    let conditionOfFree = Condition(conditioned)
    co_launch(start: .immediate) { try mutex.withLock { try waitForCancellation() } }
    co_launch(start: .immediate) { try readWrite.withWriteLock { try waitForCancellation() } }
    co_launch(start: .immediate) {
      _ = try once.run {
        try waitForCancellation()
        return 1
      }
    }
    co_launch(start: .immediate) {
      _ = try flights.run(1) {
        try waitForCancellation()
        return 1
      }
    }
    withExtendedLifetime(condition) {}
    return [
      .coroutine("lock") { try mutex.lock() },
      .coroutine("lockRead") { try readWrite.lockRead() },
      .coroutine("lockWrite") { try readWrite.lockWrite() },
      .coroutine("acquire") { try semaphore.acquire() },
      .coroutine("a condition") { try conditioned.withLock { try conditionOfFree.wait { false } } },
      .coroutine("a latch") { try latch.wait() },
      .coroutine("a wait group") { try group.wait() },
      .coroutine("a rate limiter") { try limiter.acquire() },
      .coroutine("Once") { _ = try once.run { 1 } },
      .coroutine("a flight with another caller") { _ = try flights.run(1) { 1 } },
      .coroutine("a flight of its own") {
        _ = try flights.run(2) {
          try waitForCancellation()
          return 1
        }
      },
      .coroutine("a select of locks") {
        try co_select {
          mutex.onLock {}
          semaphore.onAcquire {}
        }
      },
      .whole("a select of locks until a timeout") {
        try co_select {
          mutex.onLock {}
          semaphore.onAcquire {}
            .onTimeout(.nanoseconds(1)) {}
        }
      },
    ]
  }

  private func structure() throws -> [GivenUpForm] {
    let signal = Locked<StopSignal?>(nil)
    co_launch(start: .immediate) {
      try co_scope { scope in
        scope.launch {
          signal.current = co_stopping
          try waitForCancellation()
        }
      }
    }
    while signal.current == nil { try co_yield() }
    let pipe = PipePair()
    let full = PipePair()
    full.fill()
    let signals = co_signals([SIGUSR1])
    // The one thread has work that does not end, so further bodies are queued.
    CoroutineRuntime.blockingThreadLimit = 1
    co_launch(start: .immediate) { try co_blocking { DispatchSemaphore(value: 0).wait() } }
    return selecting("a stop signal") { signal.current! } + [
      .coroutine("a stop signal") { try co_await(signal.current!) },
      .whole("a stop signal, observed") { signal.current!.observe { _ in }.cancel() },
      .coroutine("the stop signal of a scope inside") {
        try co_scope { scope in _ = scope.launch { try co_await(co_stopping) } }
      },
      .coroutine("co_delay") { try co_delay(.seconds(3600)) },
      .coroutine("an endless co_delay") { try co_delay(.seconds(1e19)) },
      .coroutine("co_timeout") { try co_timeout(.seconds(3600)) { try waitForCancellation() } },
      .coroutine("co_scope") { try co_scope { scope in _ = scope.launch { try waitForCancellation() } } },
      .coroutine("co_scope with isolated failures") {
        try co_scope(failures: .isolated) { scope in _ = scope.launch { try waitForCancellation() } }
      },
      .coroutine("signals") { _ = try signals.receive() },
      .whole("signals, asked for again") { co_signals([SIGUSR1]).close() },
      .coroutine("co_blocking, queued") { try co_blocking {} },
      .coroutine("co_untilReadable(readable:)") { try co_untilReadable(pipe.reader) },
      .coroutine("co_untilReadable(writable:)") { try co_untilWritable(full.writer) },
    ]
  }

  private func actors() throws -> [GivenUpForm] {
    let full = co_actor(of: Question.self, mailbox: .bounded(1)) { _ in try waitForCancellation() }
    try co_yield()
    while full.tryTell(Question()) == .sent {}
    // It keeps no reply, and answers none.
    let silent = co_actor(of: Question.self) { mailbox in
      var last: Question?
      while let question = try mailbox.receive() { last = question }
      withExtendedLifetime(last) {}
    }
    return [
      .coroutine("tell to a full mailbox") { try full.tell(Question()) },
      .coroutine("ask of a full mailbox") { try full.ask { Question(reply: $0) } },
      .coroutine("ask") { do { try silent.ask { Question(reply: $0) } } catch is ReplyDroppedError {} },
      .coroutine("receive of a mailbox with a timer") {
        let actor = co_actor(of: Question.self) { mailbox in
          mailbox.schedule(Question(), after: .seconds(3600))
          _ = try mailbox.receive()
        }
        defer { actor.cancel() }
        try actor.job.join()
      },
    ]
  }

  private func tasks() throws -> [GivenUpForm] {
    let promise = Promise<Int>()
    return [
      .coroutine("co_await of a promise's value") { _ = try co_await { try await promise.value } },
      .coroutine("co_awaitToEnd of a promise's value") { _ = try co_awaitToEnd { try await promise.value } },
      .task("a promise of a Task") { _ = try await Promise<Int>.task { try await promise.value }.value },
    ]
  }
}

extension GivenUpGroup {
  /// Moves to queues that run.
  ///
  /// What is given up on a queue that is blocked stays there until it runs.
  private func switches() throws -> [GivenUpForm] {
    let home = try #require(Carrier.current?.pointee.scheduler?.takeUnretainedValue().currentQueue)
    let away = taggedQueue("occupied")
    return [
      .coroutine("co_switch") {
        // It may arrive before it is given up.
        defer { co_shield { try? co_switch(to: home) } }
        try co_switch(to: away)
      }
    ]
  }
}

extension AnyPromise {
  /// A race in a race.
  fileprivate static func nested(_ source: () -> Promise<Int>) -> AnyPromise {
    Promise.race([Promise.race([source(), source()]), Promise.any([source(), source()])])
  }

  /// Waits for a promise of any type.
  fileprivate func awaited() throws {
    try (self as! any Waitable).waitForIt()
  }
}

private protocol Waitable { func waitForIt() throws }
extension Promise: Waitable {
  fileprivate func waitForIt() throws { _ = try co_await(self) }
}
