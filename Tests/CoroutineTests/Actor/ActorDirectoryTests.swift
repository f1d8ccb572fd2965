import Testing

@testable import Coroutine

@Suite("Actors: names and groups", .timeLimit(.minutes(10)))
struct ActorDirectoryTests {
  typealias Notices = ActorEndNoticeTests

  @Test func `a name finds its actor until the actor ends`() async throws {
    try await onSerialQueue {
      let (names, worker) = (ActorRegistry(), Notices.worker())
      try names.register(worker, as: "w")
      #expect(names.actor(named: "w", of: Order.self)?.core === worker.core)
      #expect(names.actor(named: "w", of: Int.self) == nil)
      #expect(names.actor(named: "x", of: Order.self) == nil)
      #expect(names.names == ["w"])
      worker.stop()
      try worker.job.join()
      #expect(names.names == [])
      #expect(outcome { try names.register(worker, as: "w") } == "ActorStoppedError")
      #expect(names.names == [])
    }
  }

  @Test func `a name belongs to one actor until it is released`() async throws {
    try await onSerialQueue {
      let (names, one, other) = (ActorRegistry(), Notices.worker(), Notices.worker())
      try names.register(one, as: "w")
      let failure = #expect(throws: ActorRegistry.NameTakenError.self) { try names.register(other, as: "w") }
      #expect(failure?.description.contains("\"w\"") == true)
      #expect(names.unregister("w"))
      #expect(!names.unregister("w"))
      try names.register(other, as: "w")
      // The end of the previous owner does not take the name from the current one.
      one.stop()
      try one.job.join()
      #expect(names.actor(named: "w", of: Order.self)?.core === other.core)
      names.unregister("w")
    }
  }

  @Test func `a watcher that is removed before it is armed leaves nothing behind and gets no notice`() async throws {
    try await onSerialQueue {
      let (worker, told) = (Notices.worker(), Flag())
      let watcher = ActorWatcher(worker.core, .tells { _ in told.raise() })
      watcher.cancel()
      worker.core.watch(watcher)
      #expect(worker.core.watchers.isEmpty)
      #expect(watcher.isDone && !watcher.wasCalled)
      worker.stop()
      try worker.job.join()
      #expect(!told.isRaised && !watcher.wasCalled)
    }
  }

  @Test func `releasing a name from elsewhere does not make a live actor a stopped one`() async throws {
    let (names, group, worker, isOver) = (ActorRegistry(), ActorGroup<Order>(), Notices.worker(), Flag())
    let end = Promise<Void>()
    startThread {
      while !isOver.isRaised {
        names.unregister("w")
        group.leave(worker)
      }
      end.fulfill(())
    }
    try await onOwnThread {
      for _ in 0..<2_000 {
        do { try names.register(worker, as: "w") } catch is ActorRegistry.NameTakenError {}
        group.join(worker)
      }
      isOver.raise()
    }
    try await onCoroutine { try co_await(end) }
    names.unregister("w")
    group.leave(worker)
    #expect(worker.core.watchers.isEmpty)
  }

  @Test(.inWorlds) func `a registered actor lives without other handles, and its name outlives a restart`() throws {
    let (names, supervisor) = (ActorRegistry(), Supervisor())
    try names.register(supervisor.tracing("a", Trace()), as: "a")
    try names.actor(named: "a", of: Order.self)?.tell(.fail("x"))
    #expect(try names.actor(named: "a", of: Order.self)?.ask { .life($0) } == 2)
    supervisor.stop()
    try supervisor.job.join()
    #expect(names.names == [])
  }

  /// The ways in which an actor ends.
  enum End: CaseIterable { case returns, throwsError, isStopped, isCancelled, isCancelledBeforeItBegins, losesItsScope }

  @Test(.inWorlds, arguments: End.allCases)
  func `who has seen the job end finds the name free, and no member`(_ end: End) throws {
    let (names, group, late) = (ActorRegistry(), ActorGroup<Int>(), ActorGroup<Int>())
    let actor = co_actor(of: Int.self) { mailbox in
      while let number = try mailbox.receive() {
        if end == .throwsError { throw Oops("end") }
        if number == 0 { return }
      }
    }
    try names.register(actor, as: "w")
    group.join(actor)
    if end != .isCancelledBeforeItBegins { try settleWorld() }
    switch end {
    case .returns, .throwsError: try actor.tell(0)
    case .isStopped: actor.stop()
    case .isCancelled: actor.cancel()
    case .isCancelledBeforeItBegins: actor.job.cancel()
    case .losesItsScope:
      let owner = co_actor(of: Int.self) { mailbox in
        mailbox.link(actor)
        throw Oops("owner")
      }
      _ = try? owner.job.join()
    }
    _ = try? actor.job.join()
    #expect(names.names == [] && names.actor(named: "w", of: Int.self) == nil)
    #expect(group.members.isEmpty)
    // Nor does it get in again.
    #expect(outcome { try names.register(actor, as: "w") } == "ActorStoppedError")
    #expect(!late.join(actor) && late.members.isEmpty && names.names == [])
  }

  @Test func `a name goes within the cancel, also if the actor's queue is blocked`() async throws {
    let (names, group, blocked) = (ActorRegistry(), ActorGroup<Int>(), try await BlockedQueue())
    for round in 0..<50 {
      let actor = co_actor(of: Int.self, on: blocked.queue) { _ in }
      try names.register(actor, as: "w")
      group.join(actor)
      actor.cancel()
      #expect(names.names == [] && group.members.isEmpty, "in round \(round)")
      try names.register(co_actor(of: Int.self) { mailbox in _ = try mailbox.receive() }, as: "w")
      names.unregister("w")
    }
    try await blocked.releaseAndSettle()
  }

  @Test func `the process has a registry`() async throws {
    try await onSerialQueue {
      let worker = Notices.worker()
      try ActorRegistry.shared.register(worker, as: "the process has a registry")
      #expect(ActorRegistry.shared.actor(named: "the process has a registry", of: Order.self) != nil)
      ActorRegistry.shared.unregister("the process has a registry")
    }
  }

  /// An actor that writes its messages, with its name, into `trace`.
  private static func member(_ name: String, _ trace: Trace, _ mailbox: Channel<Int>.Capacity = .unbounded)
    -> ActorRef<Int>
  {
    co_actor(mailbox: mailbox, failsWhenFull: true) { mailbox in
      while let number = try mailbox.receive() { trace("\(name)\(number)") }
    }
  }

  @Test func `members are told in the order of joining, and leave when they end`() async throws {
    try await onSerialQueue {
      let (group, trace) = (ActorGroup<Int>(), Trace())
      let members = ["a", "b", "c"].map { Self.member($0, trace) }
      for member in members { #expect(group.join(member)) }
      #expect(!group.join(members[0]))
      #expect(try group.tell(1) == 3)
      try settle()
      members[1].stop()
      // Stopped, and not yet ended.
      #expect(try group.tell(2) == 2)
      try members[1].job.join()
      #expect(group.members.count == 2)
      #expect(group.tryTell(3) == 2)
      #expect(group.leave(members[0]))
      #expect(!group.leave(members[0]))
      #expect(!group.join(members[1]), "it has ended")
      try group.tell(4)
      try settle()
      #expect(trace.all == ["a1", "b1", "c1", "a2", "c2", "a3", "c3", "c4"])
      #expect(group.members.map { $0.core === members[2].core } == [true])
    }
  }

  @Test func `a group and a registry that are released leave nothing with their actors`() async throws {
    try await onSerialQueue {
      let worker = Notices.worker()
      do {
        let (group, names) = (ActorGroup<Order>(), ActorRegistry())
        group.join(worker)
        try names.register(worker, as: "w")
        #expect(worker.core.watchers.count == 2)
      }
      #expect(worker.core.watchers.isEmpty)
    }
  }

  @Test func `members without room are skipped`() async throws {
    try await onSerialQueue {
      let (group, trace) = (ActorGroup<Int>(), Trace())
      for member in [Self.member("a", trace, .bounded(1)), Self.member("b", trace)] { group.join(member) }
      #expect(try group.tell(1) == 2)
      #expect(try group.tell(2) == 1)
      #expect(group.tryTell(3) == 1)
      try settle()
      #expect(trace.all == ["a1", "b1", "b2", "b3"])
    }
  }

  @Test func `members take turns, and an empty group has none`() async throws {
    try await onSerialQueue {
      let (group, trace) = (ActorGroup<Int>(), Trace())
      #expect(group.next() == nil)
      let members = ["a", "b", "c"].map { Self.member($0, trace) }
      for member in members { group.join(member) }
      for number in 1...4 { try group.next()?.tell(number) }
      group.leave(members[0])
      for number in 5...7 { try group.next()?.tell(number) }
      try settle()
      #expect(trace.all.sorted() == ["a1", "a4", "b2", "b5", "b7", "c3", "c6"])
    }
  }
}
