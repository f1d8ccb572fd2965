import Testing

@testable import Coroutine

@Suite("Supervision: limits and trees", .timeLimit(.minutes(10)))
struct EscalationTests {
  @Test(.inWorlds) func `one restart more than the limit allows fails the supervisor and all its actors`() throws {
    let trace = Trace()
    let supervisor = Supervisor(limit: RestartLimit(restarts: 2, within: .seconds(10)))
    let (failing, other) = (supervisor.tracing("failing", trace), supervisor.tracing("other", trace))
    let asker = co_launch {
      let gate = Gate()
      try other.tell(.hold(gate))
      return outcome { try other.ask { .life($0) } }
    }
    try settle()
    for number in 1...3 { try failing.tell(.fail("\(number)")) }
    let failure = #expect(throws: Supervisor.RestartLimitError.self) { try supervisor.job.join() }
    #expect(failure?.last.text == "failing failed Oops(3)")
    #expect(failure?.description.contains("more than 2 restarts") == true)
    #expect(try asker.join() == "ActorStoppedError")
    #expect(outcome { try failing.job.join() } == "Oops(3)")
    #expect(outcome { try other.job.join() } == "CancellationError")
    #expect(trace.all.filter { $0.contains("failing begins") }.count == 3)
    // An actor that it is given then has ended.
    let late = supervisor.tracing("late", trace)
    #expect(outcome { try late.job.join() } == "CancellationError")
  }

  @Test(.inWorlds) func `restarts count within the period only`() throws {
    let supervisor = Supervisor(limit: RestartLimit(restarts: 2, within: .seconds(10)))
    let actor = supervisor.tracing("a", Trace())
    for round in 1...6 {
      try actor.tell(.fail("x"))
      // Two within any ten seconds.
      try co_delay(.seconds(5))
      #expect(try actor.ask { .life($0) } == round + 1)
    }
    // The restart ten seconds ago no longer counts, those five and zero seconds ago do.
    try actor.tell(.fail("x"))
    try settle()
    #expect(!supervisor.job.isFinished)
    try actor.tell(.fail("y"))
    #expect(throws: Supervisor.RestartLimitError.self) { try supervisor.job.join() }
  }

  @Test(.inWorlds) func `a limit of zero permits no restart`() throws {
    let supervisor = Supervisor(limit: RestartLimit(restarts: 0))
    let actor = supervisor.tracing("a", Trace())
    try actor.tell(.fail("x"))
    #expect(throws: Supervisor.RestartLimitError.self) { try supervisor.job.join() }
    #expect(outcome { try actor.job.join() } == "Oops(x)")
  }

  @Test(.inWorlds) func `a failure that led to an escalation is not reported twice`() throws {
    let errors = UnhandledErrors()
    do {
      let supervisor = Supervisor(limit: RestartLimit(restarts: 0))
      let actor = supervisor.actor(of: Int.self) { mailbox in
        while try mailbox.receive() != nil { throw errors.failure("child") }
      }
      try actor.tell(1)
      #expect(throws: Supervisor.RestartLimitError.self) { try supervisor.job.join() }
    }
    try settleWorld()
    #expect(errors.labels.isEmpty)
  }

  @Test(.inWorlds)
  func `a failure moves up the tree, and a restarted supervisor restarts all its actors, with their mail`() throws {
    let (trace, told) = (Trace(), Trace())
    let top = Supervisor(name: "top", onRestart: { told($0.text) })
    let beside = top.tracing("beside", trace)
    let inner = top.supervisor(limit: RestartLimit(restarts: 1, within: .seconds(60)), name: "inner")
    let (a, b) = (inner.tracing("a", trace), inner.tracing("b", trace))
    try settle()
    for order in [Order.fail("1"), .fail("2"), .note("kept")] { try a.tell(order) }
    try settle()
    #expect(told.all == ["inner failed RestartLimitError"])
    #expect(trace.all.suffix(3).sorted() == ["a begins 3", "a: kept", "b begins 2"])
    #expect(try beside.ask { .life($0) } == 1)
    // The count starts again as well.
    try b.tell(.fail("3"))
    #expect(try b.ask { .life($0) } == 3)
    #expect(inner.restartCount == 2)
    top.stop()
    try top.job.join()
    try inner.job.join()
    #expect(trace.all.suffix(3) == ["b ends", "a ends", "beside ends"])
  }

  @Test(.inWorlds) func `up a tree of supervisors each fails with the first cause`() throws {
    let limit = RestartLimit(restarts: 0)
    var supervisors = [Supervisor(limit: limit)]
    for _ in 0..<5 { supervisors.append(supervisors[supervisors.count - 1].supervisor(limit: limit)) }
    let actor = supervisors[5].tracing("a", Trace())
    try settle()
    try actor.tell(.fail("x"))
    for supervisor in supervisors {
      let failure = #expect(throws: Supervisor.RestartLimitError.self) { try supervisor.job.join() }
      #expect(failure?.last.text == "a failed Oops(x)")
    }
  }

  @Test(.inWorlds) func `a sibling's failure restarts a whole subtree`() throws {
    // There, coroutines start in the order of their launches.
    try co_switch(to: taggedQueue("serial"))
    let trace = Trace()
    let top = Supervisor(.allForOne)
    let failing = top.tracing("failing", trace)
    let inner = top.supervisor()
    _ = inner.tracing("a", trace)
    _ = inner.tracing("b", trace)
    try settle()
    try failing.tell(.fail("x"))
    try settle()
    #expect(trace.all.dropFirst(3).prefix(3) == ["failing ends", "b ends", "a ends"])
    #expect(trace.all.dropFirst(6).sorted() == ["a begins 2", "b begins 2", "failing begins 2"])
    top.stop()
    try top.job.join()
  }

  @Test(.inWorlds) func `stop drains actors in reverse order of starting, cancel drops their messages`() throws {
    // There, coroutines start in the order of their launches.
    try co_switch(to: taggedQueue("serial"))
    let trace = Trace()
    for end in [{ $0.stop() }, { $0.cancel() }] as [(Supervisor) -> Void] {
      let supervisor = Supervisor()
      let actors = ["a", "b"].map { supervisor.tracing($0, trace) }
      try settle()
      let gate = Gate()
      for actor in actors {
        try actor.tell(.hold(gate))
        try actor.tell(.note("last"))
      }
      end(supervisor)
      try settle()
      gate.open()
      _ = try? supervisor.job.join()
      #expect(actors.map { $0.job.isFinished } == [true, true])
    }
    #expect(trace.all.prefix(2) == ["a begins 1", "b begins 1"])
    #expect(trace.all.dropFirst(2).prefix(4).sorted() == ["a ends", "a: last", "b ends", "b: last"])
    #expect(trace.all.firstIndex(of: "b ends")! < trace.all.firstIndex(of: "a ends")!)
    #expect(trace.all.dropFirst(6) == ["a begins 1", "b begins 1", "b ends", "a ends"])
  }

  @Test(.inWorlds) func `a stopping supervisor does not restart, and cancel ends a long stop`() throws {
    let trace = Trace()
    let supervisor = Supervisor()
    let stuck = supervisor.tracing("stuck", trace)
    let failing = supervisor.tracing("failing", trace)
    try stuck.tell(.hold(Gate()))
    try failing.tell(.fail("x"))
    supervisor.stop()
    try settle()
    #expect(outcome { try failing.job.join() } == "Oops(x)")
    #expect(!supervisor.job.isFinished)
    supervisor.cancel()
    #expect(outcome { try supervisor.job.join() } == "CancellationError")
    #expect(stuck.job.isFinished)
  }

  @Test(.inWorlds) func `a supervisor keeps its actors alive, and they keep it alive`() throws {
    let trace = Trace()
    let job: Job<Void>
    do {
      let actor: ActorRef<Order>
      do {
        let supervisor = Supervisor()
        _ = supervisor.tracing("unheld", trace)
        actor = supervisor.tracing("held", trace)
        job = supervisor.job
      }
      try settle()
      try actor.tell(.fail("x"))
      #expect(try actor.ask { .life($0) } == 2)
      #expect(trace.all.contains("unheld begins 1") && !trace.all.contains("unheld ends"))
    }
    try job.join()
    #expect(trace.all.suffix(2) == ["held ends", "unheld ends"])
  }

  /// An actor that does not end with its mailbox, known to a supervisor and not begun.
  private static func announced(_ supervisor: Supervisor) -> ActorCore<Int> {
    let options = MailboxOptions<Int>(capacity: .unbounded, failsWhenFull: false, onUndelivered: nil)
    let child = ActorCore(options, Supervision(supervisor.core, .onFailure)) { _ in try waitForCancellation() }
    child.prepare(on: nil, name: "late", LaunchSite(file: #fileID, line: #line))
    supervisor.core.announce(child)
    return child
  }

  @Test(.inWorlds)
  func `an actor that is started while its supervisor ends is cancelled, and no end waits for it for ever`() throws {
    // The supervisor gets the message while it waits for another's end; after its end; or without ever having
    // started.
    let (ending, cleanup) = (Supervisor(), Gate())
    let busy = ending.tracing("busy", Trace(), cleanup: cleanup)
    try settle()
    ending.cancel()
    try settle()
    #expect(!busy.job.isFinished)
    let first = Self.announced(ending)
    cleanup.open()
    // It ends without waiting for the start.
    #expect(outcome { try ending.job.join() } == "CancellationError")
    let second = Self.announced(ending)
    let unbegun = Supervisor()
    let third = Self.announced(unbegun)
    unbegun.cancel()
    #expect(outcome { try unbegun.job.join() } == "CancellationError")
    for child in [first, second, third] {
      child.begin()
      #expect(outcome { try child.job?.join() } == "CancellationError")
    }
  }

  @Test(.inWorlds) func `actors that a coroutine starts while their supervisor is cancelled all end`() throws {
    let supervisor = Supervisor()
    let starting = co_launch {
      (0..<3).map { _ in supervisor.actor(of: Int.self) { _ in try waitForCancellation() }.job }
    }
    co_launch { supervisor.cancel() }
    #expect(outcome { try supervisor.job.join() } == "CancellationError")
    for job in try starting.join() { #expect(outcome { try job.join() } == "CancellationError") }
  }

  @Test func `actors that a thread starts while their supervisor is cancelled all end`() async throws {
    for _ in 0..<200 {
      let supervisor = Supervisor()
      let jobs = Promise<[Job<Void>]>()
      startThread {
        var started: [Job<Void>] = []
        for _ in 0..<8 { started.append(supervisor.actor(of: Int.self) { _ in try waitForCancellation() }.job) }
        jobs.fulfill(started)
      }
      supervisor.cancel()
      try await onCoroutine {
        #expect(outcome { try supervisor.job.join() } == "CancellationError")
        for job in try co_await(jobs) { #expect(outcome { try job.join() } == "CancellationError") }
      }
    }
  }

  @Test(.inWorlds) func `a supervisor that is cancelled before it starts cancels its actors`() throws {
    // There, coroutines start in the order of their launches.
    try co_switch(to: taggedQueue("serial"))
    let supervisor = Supervisor()
    let actor = supervisor.tracing("a", Trace())
    supervisor.cancel()
    #expect(outcome { try supervisor.job.join() } == "CancellationError")
    #expect(outcome { try actor.job.join() } == "CancellationError")
  }
}
