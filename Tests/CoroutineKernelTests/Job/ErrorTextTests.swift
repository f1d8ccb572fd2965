import Coroutine
import CoroutineTesting
import Testing

@Suite("Errors print as sentences", .timeLimit(.minutes(10)))
struct ErrorTextTests {
  struct Cause: Error, CustomStringConvertible { var description: String { "the disk is full" } }

  @Test func `the errors of channels, generators, actors and deadlines`() {
    #expect("\(ChannelClosedError())" == "the channel is closed")
    #expect(
      "\(ChannelClosedError(cause: Cause()))" == "the channel is closed; it was closed with the error: the disk is full"
    )
    #expect("\(GeneratorClosedError())" == "the generator was closed or released before its body had ended")
    #expect(
      "\(ActorStoppedError())" == "the actor has stopped; it takes no more messages and answers no more questions"
    )
    #expect("\(ReplyDroppedError())".hasPrefix("the question got no answer: "))
    #expect("\(TimeoutError())" == "the deadline has passed")
    #expect("\(TimeoutError(after: .milliseconds(50)))" == "the deadline of 0.05 seconds has passed")
  }

  @Test func `an aggregate lists its failures`() {
    #expect("\(AggregateError())" == "nothing has succeeded, because there was nothing to wait for")
    #expect("\(AggregateError(errors: [Cause()]))" == "the only one to wait for has failed: the disk is full")
    let two = AggregateError(errors: [Cause(), TimeoutError()])
    #expect("\(two)" == "all 2 have failed: (1) the disk is full, (2) the deadline has passed")
  }

  private static func place(_ line: Int) -> String { " at CoroutineKernelTests/ErrorTextTests.swift:\(line)" }

  @Test(.inWorlds) func `an expired deadline gives its duration, and its place`() throws {
    let never = Promise<Int>()
    let seen = try onWorldQueue {
      [
        Self.text { try co_timeout(.milliseconds(1)) { try waitForCancellation() } },
        Self.text { try co_timeout(.zero) {} }, Self.text { try co_timeout(.nanoseconds(-470)) {} },
        Self.text { try co_timeout(until: co_now.advanced(by: .nanoseconds(-470))) {} },
        Self.text { _ = try co_await(never.timeout(.milliseconds(2))) },
      ]
    }
    #expect(
      seen == [
        "the deadline of 0.001 seconds\(Self.place(36)) has passed",
        "the deadline of 0.0 seconds\(Self.place(37)) has passed",
        "the deadline\(Self.place(37)) has passed", "the deadline\(Self.place(38)) has passed",
        "the deadline of 0.002 seconds\(Self.place(39)) has passed",
      ]
    )
  }

  @Test func `wouldDeadlock names the violated rule, and no other`() async throws {
    let seen = try await onSerialQueue {
      let (mutex, lock) = (FairMutex(), FairReadWriteLock())
      let flights = SingleFlight<Int, Int>()
      try mutex.lock()
      try lock.lockWrite()
      let itself = Locked<Job<String>?>(nil)
      itself.current = co_launch { Self.text { try itself.current?.join() } }
      let joins = try itself.current?.join() ?? ""
      itself.current = nil
      return [
        joins, Self.text { try co_launch {}.blockingWait() }, Self.text { try Promise.value(1).blockingWait() },
        Self.text { try mutex.lock() }, Self.text { try lock.lockRead() },
        Self.text { try co_select { mutex.onLock {} } }, Self.text { try co_select { lock.onWriteLock {} } },
        Self.text { try FairSemaphore(2).acquire(3) }, Self.text { try co_select { FairSemaphore(2).onAcquire(3) {} } },
        Self.text { try RateLimiter(1, burst: 2).acquire(3) },
        Self.text { try flights.run(1) { try flights.run(1) { 1 } } },
      ]
    }
    let words = [
      "a coroutine cannot join itself", "blockingWait() blocks the thread", "blockingWait() blocks the thread",
      "holds this FairMutex", "holds this FairReadWriteLock", "holds this FairMutex", "holds this FairReadWriteLock",
      "3 permits were asked of a FairSemaphore that never has more than 2", "3 permits were asked of a FairSemaphore",
      "3 tokens were asked of a RateLimiter whose burst is 2",
      "the body of this key asks the same SingleFlight for the same key",
    ]
    for (text, word) in zip(seen, words) {
      #expect(text.hasPrefix("waiting here could never end: "))
      #expect(text.contains(word), "\(text)")
      #expect(Set(words).filter { text.contains($0) && !word.hasPrefix($0) && !$0.hasPrefix(word) }.isEmpty, "\(text)")
    }
  }

  @Test func `wait on the queue that the job needs names that rule`() async throws {
    let queue = taggedQueue("needed")
    let gate = Gate()
    let job = co_launch(on: queue) { try gate.pass() }
    let text = try await onBlock(of: queue) { Self.text { try job.blockingWait() } }
    gate.open()
    #expect(text.contains("blockingWait() blocks the queue that the job needs"))
    try await job.value
  }

  @Test func `an actor that asks itself, or fills its own mailbox, gets that reason`() async throws {
    enum Order: Sendable {
      case askYourself, fillYourself, nothing
      case answer(Reply<Int>)
    }
    let texts = Trace()
    let actor = co_actor(of: Order.self, mailbox: 1) { mailbox in
      while let order = try mailbox.receive() {
        switch order {
        case .askYourself: texts(Self.text { _ = try mailbox.actor.ask { Order.answer($0) } as Int })
        case .fillYourself:
          try mailbox.actor.tell(.nothing)
          texts(Self.text { try mailbox.actor.tell(.nothing) })
          return
        case .answer, .nothing: break
        }
      }
    }
    try await onCoroutine {
      try actor.tell(.askYourself)
      try actor.tell(.fillYourself)
      try actor.job.join()
    }
    #expect(texts.count == 2)
    #expect(texts.all.first?.contains("an actor that asks itself") == true)
    #expect(texts.all.last?.contains("the actor's mailbox is full") == true)
  }

  @Test func `wouldDeadlock is matched, thrown and printed without its reason`() throws {
    func refused() throws { throw CoroutineError.wouldDeadlock }
    func refusedFor(_ reason: String) throws { throw CoroutineError.wouldDeadlock(because: .init(reason)) }
    for body in [refused, { try refusedFor("of a rule") }] {
      do {
        try body()
      } catch CoroutineError.wouldDeadlock {
        continue
      }
    }
    let error: any Error = CoroutineError.wouldDeadlock
    #expect(name(of: error) == "wouldDeadlock")
    #expect("\(CoroutineError.wouldDeadlock)".hasPrefix("waiting here could never end: "))
    let isMatched = if case .wouldDeadlock? = error as? CoroutineError { true } else { false }
    #expect(isMatched)
  }

  @Test func `a pattern prints a sentence without the number that it stands for`() {
    let patterns: [(CoroutineError, String)] = [
      (.cannotWatch, "the kernel refused to watch a descriptor"),
      (.stackTooLarge, "a stack is beyond the largest size class of 16 MiB; ask for less, or recurse less deeply"),
      (.outOfStacks, "there is no stack for a coroutine; let fewer coroutines live at once"),
      (.invalidCount, "a count must be at least one"),
    ]
    for (pattern, text) in patterns { #expect("\(pattern)" == text) }
    #expect("\(CoroutineError.invalidCount(0))" == "the count is 0, and must be at least one")
    #expect(Self.text { try co_map([1], limit: 0) { $0 } } == "the limit of a co_map is 0, and must be at least one")
    #expect("\(CoroutineError.stackTooLarge(1 << 30))".hasPrefix("a stack of 1073741824 bytes is beyond "))
  }

  @Test func `options print as the words that make them`() {
    let options: [any CustomStringConvertible] = [
      StackSize.standard, StackSize.bytes(4096), StartMode.queued, StartMode.immediate, StartMode.lazy,
      Channel<Int>.Capacity.rendezvous, Channel<Int>.Capacity.bounded(3), Channel<Int>.Capacity.unbounded,
      Channel<Int>.Capacity.dropOldest(1), Channel<Int>.Capacity.dropNewest(2), RestartPolicy.always,
      RestartPolicy.onFailure, RestartPolicy.never, RestartStrategy.oneForOne, RestartStrategy.allForOne,
      RestartStrategy.restForOne, Once<Int>.Failure.retries, Once<Int>.Failure.isKept, Exploration.Strategy.inOrder,
      Exploration.Strategy.random(seeds: 2, from: 7), Exploration.Strategy.priorities(),
      Exploration.Strategy.exhaustive(most: 9), Exploration.Strategy.replay("a\nb"), Exploration.Sharing.memory,
      Exploration.Sharing.waits,
    ]
    let texts = [
      "standard", "bytes(4096)", "queued", "immediate", "lazy",
      "rendezvous", "bounded(3)", "unbounded",
      "dropOldest(1)", "dropNewest(2)", "always",
      "onFailure", "never", "oneForOne", "allForOne",
      "restForOne", "retries", "isKept", "inOrder",
      "random(seeds: 2, from: 7)", "priorities(depth: 3, runs: 1000)",
      "exhaustive(preemptions: 2, most: 9)", #"replay("a\nb")"#, "memory",
      "waits",
    ]
    #expect(options.map { "\($0)" } == texts)
  }

  @Test func `a program makes an unhandled error for a test of its handler`() {
    let unhandled = CoroutineRuntime.UnhandledError(error: Cause(), name: "import", origin: "\"import\" (id 7)")
    #expect(unhandled.name == "import" && unhandled.launchSite == nil)
    #expect("\(unhandled)" == "unhandled error in \"import\" (id 7): the disk is full")
  }

  private static func text(_ body: () throws -> some Any) -> String {
    do {
      return "\(try body())"
    } catch {
      return "\(error)"
    }
  }
}
