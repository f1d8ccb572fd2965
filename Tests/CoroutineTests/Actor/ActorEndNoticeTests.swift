import Testing

@testable import Coroutine

@Suite("Actors: monitors and links", .timeLimit(.minutes(10)))
struct ActorEndNoticeTests {
  enum Watch: Sendable {
    case monitor(ActorRef<Order>)
    case link(ActorRef<Order>)
    case takeOff
    case ended(ActorEnd)
    case ping(Reply<Void>)
  }

  /// Writes the notices of ends into `trace`.
  static func watcher(_ trace: Trace, mailbox: Channel<Watch>.Capacity = .unbounded, gate: Gate? = nil)
    -> ActorRef<Watch>
  {
    co_actor(name: "watcher", mailbox: mailbox) { mailbox in
      var monitors: [ActorMonitor] = []
      try gate?.pass()
      while let message = try mailbox.receive() {
        switch message {
        case .monitor(let other): monitors.append(mailbox.monitor(other) { .ended($0) })
        case .link(let other): monitors.append(mailbox.link(other))
        case .takeOff: for monitor in monitors { monitor.cancel() }
        case .ended(let end): trace(end.text)
        case .ping(let reply): reply()
        }
      }
    }
  }

  /// An unsupervised actor.
  static func worker(_ name: String = "worker") -> ActorRef<Order> {
    co_actor(name: name) { mailbox in
      while let order = try mailbox.receive() {
        switch order {
        case .fail(let label): throw Oops(label)
        case .finish: return
        case .hold(let gate): try gate.pass()
        case .note: continue
        case .life(let reply): reply(1)
        }
      }
    }
  }

  private static let ends: [(String, @Sendable (ActorRef<Order>) -> Void)] = [
    ("worker stopped", { $0.stop() }), ("worker cancelled", { $0.cancel() }),
    ("worker failed Oops(x)", { _ = $0.tryTell(.fail("x")) }), ("worker stopped", { _ = $0.tryTell(.finish) }),
  ]

  @Test func `each end gives one notice, also if the actor has ended already`() async throws {
    for (text, end) in Self.ends {
      for isLate in [false, true] {
        try await onSerialQueue {
          let (trace, worker) = (Trace(), Self.worker())
          let watcher = Self.watcher(trace)
          if !isLate {
            try watcher.tell(.monitor(worker))
            try settle()
          }
          end(worker)
          _ = try? worker.job.join()
          if isLate { try watcher.tell(.monitor(worker)) }
          // The end of an actor that never ran is published by another thread (JobRecord.swift).
          while trace.all.isEmpty { try co_yield() }
          try settle()
          try watcher.ask { .ping($0) }
          #expect(trace.all == [text])
        }
      }
    }
  }

  @Test func `two monitors give two notices, a cancelled monitor none`() async throws {
    try await onSerialQueue {
      let (trace, worker, other) = (Trace(), Self.worker(), Self.worker("other"))
      let watcher = Self.watcher(trace)
      try watcher.tell(.monitor(other))
      try watcher.tell(.takeOff)
      try watcher.tell(.monitor(worker))
      try watcher.tell(.monitor(worker))
      try settle()
      other.stop()
      worker.stop()
      try other.job.join()
      try worker.job.join()
      try settle()
      #expect(trace.all == ["worker stopped", "worker stopped"])
    }
  }

  @Test(arguments: [Channel<Watch>.Capacity.rendezvous, .bounded(1), .dropOldest(1), .dropNewest(1)])
  func `a notice is not lost to a full mailbox`(mailbox: Channel<Watch>.Capacity) async throws {
    try await onSerialQueue {
      let (trace, gate, worker) = (Trace(), Gate(), Self.worker())
      let watcher = co_actor(of: Watch.self, mailbox: mailbox) { mailbox in
        mailbox.monitor(worker) { .ended($0) }
        try gate.pass()
        while let message = try mailbox.receive() {
          if case .ended(let end) = message { trace(end.text) } else { trace("other") }
        }
      }
      try co_yield()
      _ = watcher.tryTell(.takeOff)
      worker.stop()
      try worker.job.join()
      for _ in 0..<5 { _ = watcher.tryTell(.takeOff) }
      gate.open()
      try settle()
      watcher.stop()
      try watcher.job.join()
      #expect(trace.all.filter { $0 == "worker stopped" }.count == 1)
    }
  }

  @Test func `linked actors fail together, and at once if one has failed before`() async throws {
    for (fails, isLate) in [(true, false), (true, true), (false, false)] {
      try await onSerialQueue {
        let worker = Self.worker()
        let watcher = Self.watcher(Trace())
        if !isLate { try watcher.tell(.link(worker)) }
        try settle()
        if fails { try worker.tell(.fail("x")) } else { watcher.cancel() }
        try settle()
        if isLate { try watcher.tell(.link(worker)) }
        if fails {
          #expect(outcome { try worker.job.join() } == "Oops(x)")
          let failure = #expect(throws: ActorMonitor.LinkedActorError.self) { try watcher.job.join() }
          #expect(failure?.end.text == "worker failed Oops(x)")
          #expect(failure?.description.contains("has failed: Oops") == true)
        } else {
          // Its loop threw, and so did its body.
          #expect(outcome { try watcher.job.join() } == "CancellationError")
          let failure = #expect(throws: ActorMonitor.LinkedActorError.self) { try worker.job.join() }
          #expect(failure?.end.text == "watcher cancelled")
        }
      }
    }
  }

  @Test func `along a chain of links every actor fails with the first cause`() async throws {
    try await onSerialQueue {
      let worker = Self.worker()
      var watchers = [Self.watcher(Trace())]
      try watchers[0].tell(.link(worker))
      for _ in 0..<5 {
        let before = watchers[watchers.count - 1]
        watchers.append(
          co_actor { mailbox in
            mailbox.link(before)
            while try mailbox.receive() != nil {}
          }
        )
      }
      try settle()
      try worker.tell(.fail("x"))
      for watcher in watchers {
        let failure = #expect(throws: ActorMonitor.LinkedActorError.self) { try watcher.job.join() }
        #expect(failure?.end.text == "worker failed Oops(x)")
        #expect(failure?.description.contains("the linked actor \"worker\"") == true)
      }
    }
  }

  @Test func `an actor that stops, or is no longer linked, does not end other actors`() async throws {
    try await onSerialQueue {
      let (stopping, unlinked, watcher) = (Self.worker(), Self.worker(), Self.watcher(Trace()))
      try watcher.tell(.link(unlinked))
      try watcher.tell(.takeOff)
      try watcher.tell(.link(stopping))
      try settle()
      stopping.stop()
      unlinked.cancel()
      try stopping.job.join()
      try settle()
      try watcher.ask { .ping($0) }
      watcher.stop()
      try watcher.job.join()
    }
  }

  @Test(.inWorlds) func `a link that fails a supervised actor leads to a restart, which removes the link`() throws {
    let (trace, worker) = (Trace(), Self.worker())
    let supervisor = Supervisor(onRestart: { trace($0.text) })
    let lives = Locked(0)
    let actor = supervisor.actor(of: Order.self, name: "linked") { mailbox in
      let life = lives.withLock {
        $0 += 1
        return $0
      }
      if life == 1 { mailbox.link(worker) }
      while let order = try mailbox.receive() { if case .life(let reply) = order { reply(life) } }
    }
    try settle()
    worker.cancel()
    try settle()
    #expect(try actor.ask { .life($0) } == 2)
    #expect(trace.all == ["linked failed LinkedActorError"])
    supervisor.stop()
    try supervisor.job.join()
  }

  @Test(.inWorlds) func `a restart is no end: monitors report the last life only`() throws {
    let (trace, supervisor) = (Trace(), Supervisor())
    let actor = supervisor.tracing("a", Trace())
    let watcher = Self.watcher(trace)
    try watcher.tell(.monitor(actor))
    try settle()
    try actor.tell(.fail("x"))
    #expect(try actor.ask { .life($0) } == 2)
    #expect(trace.all == [])
    supervisor.stop()
    try supervisor.job.join()
    try settle()
    #expect(trace.all == ["a stopped"])
    watcher.stop()
  }

  @Test func `an actor that watches many short lives keeps none of them`() async throws {
    try await onSerialQueue {
      let (trace, watcher) = (Trace(), Self.watcher(Trace()))
      for number in 0..<100 {
        let worker = Self.worker()
        try watcher.tell(.monitor(worker))
        try settle()
        worker.stop()
        try worker.job.join()
        _ = number
      }
      try settle()
      #expect(watcher.core.watching.count < 40)
      trace("done")
    }
  }
}
