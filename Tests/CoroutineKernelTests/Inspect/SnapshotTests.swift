import Dispatch
import Testing

@testable import Coroutine

/// The values of a snapshot, beside the text of a dump.
@Suite("CoroutineRuntime.snapshot", .timeLimit(.minutes(10)))
struct SnapshotTests {
  typealias Entry = CoroutineRuntime.Snapshot.Coroutine

  /// The entries of the coroutines of `body`, by name, in a snapshot that is taken while they wait.
  private func entries(
    _ body: @escaping @Sendable (_ take: () -> Void) throws -> Void
  ) async throws -> [String: Entry] {
    try await onOwnThread {
      let simulation = Simulation()
      return try simulation.run {
        var found: [String: Entry] = [:]
        try body {
          let scheduler = Carrier.current?.pointee.scheduler?.takeUnretainedValue()
          for entry in CoroutineRuntime.snapshot(stacks: false, of: [scheduler.unsafelyUnwrapped]).coroutines {
            found[entry.name ?? ""] = entry
          }
        }
        return found
      }
    }
  }

  @Test func `a snapshot distinguishes the four states and how long they have lasted`() async throws {
    let entries = try await entries { take in
      let gate = Gate()
      co_launch(name: "waits") { try gate.pass() }
      co_launch(name: "yields") {
        try co_delay(.milliseconds(5))
        try co_yield()
      }
      try co_delay(.milliseconds(5))
      try co_yield()
      co_launch(name: "queued") {}
      take()
      gate.open()
    }
    #expect(entries["waits"]?.state == .waiting)
    #expect(entries["waits"]?.since == .milliseconds(5))
    #expect(entries["waits"]?.launchSite.hasPrefix("CoroutineKernelTests/SnapshotTests.swift:") == true)
    #expect(entries["yields"]?.state == .ready && entries["yields"]?.wait == nil)
    #expect(entries["queued"]?.state == .notStarted)
    #expect(entries["body"]?.state == .running)
    #expect(entries.values.allSatisfy { !$0.isTorn && $0.stack.isEmpty })
  }

  @Test func `a wait has a kind, the address of its object, its owner and words`() async throws {
    let entries = try await entries { take in
      let (mutex, channel) = (FairMutex(), Channel<Int>())
      let owner = co_launch(name: "owns") { try mutex.withLock { try co_delay(.milliseconds(20)) } }
      for name in ["first", "second"] { co_launch(name: name) { try mutex.withLock {} } }
      co_launch(name: "joins") { try owner.join() }
      let receiver = co_launch(name: "receives") { _ = try channel.receive() }
      try co_delay(.milliseconds(3))
      receiver.cancel()
      take()
    }
    let owner = try #require(entries["owns"])
    let first = try #require(entries["first"]?.wait)
    #expect(owner.wait?.kind == "delay" && owner.wait?.object == nil)
    #expect(owner.wait?.text == "for a delay (ends in 17 ms)")
    #expect(first.kind == "lock" && first.owner == owner.id)
    #expect(first.object != nil && first.object == entries["second"]?.wait?.object)
    #expect(first.text.hasSuffix("held by #\(owner.id) \"owns\")"))
    #expect(entries["joins"]?.wait?.owner == owner.id)
    #expect(entries["joins"]?.wait?.text == "for a job (#\(owner.id) \"owns\")")
    #expect(entries["receives"]?.isCancelled == true && owner.isCancelled == false)
  }

  @Test func `timers that a busy queue does not reach are late`() async throws {
    try await onCoroutine(on: taggedQueue("snapshot.late")) {
      let job = co_launch(name: "sleeps too long") { try co_delay(.milliseconds(1)) }
      try co_yield()
      // No suspension: the timer cannot fire.
      var snapshot = CoroutineRuntime.snapshot()
      while snapshot.lateTimers.isEmpty { snapshot = CoroutineRuntime.snapshot() }
      let entry = try #require(snapshot.coroutines.first { $0.id == job.id && $0.name == "sleeps too long" })
      #expect(entry.scheduler == "coroutine.tests.snapshot.late")
      #expect(snapshot.lateTimers.allSatisfy { $0 >= .milliseconds(1) })
      #expect(snapshot.coroutines.map(\.id) == snapshot.coroutines.map(\.id).sorted())
      try job.join()
    }
  }

  @Test func `can be taken on any thread while coroutines start, are cancelled and end`() async {
    await #expect(processExitsWith: .success) {
      let over = Flag()
      let busy = (0..<3).map { number in
        co_launch(on: taggedQueue("busy \(number)")) {
          while !over.isRaised {
            let waiting = co_launch(name: "short") { try co_delay(.seconds(60)) }
            try co_yield()
            waiting.cancel()
            try? waiting.join()
          }
        }
      }
      try await onOwnThread {
        for _ in 0..<200 {
          let ids = CoroutineRuntime.snapshot().coroutines.map(\.id)
          if ids.count < 3 || Set(ids).count != ids.count { throw Oops("a coroutine is missing, or there twice") }
        }
      }
      over.raise()
      for job in busy { try await job.value }
    }
  }

  /// A world that listed others would not repeat, and a world that another thread lists would run otherwise.
  @Test func `a world lists its own coroutines alone, and a thread outside of worlds none of them`() async throws {
    let end = Promise<Int>()
    let outside = co_launch(name: "outside") { try co_await(end) }
    @Sendable func names() -> Set<String> { Set(CoroutineRuntime.snapshot().coroutines.compactMap(\.name)) }
    while !names().contains("outside") { await Task.yield() }
    /// The names that a world lists that has a coroutine `name`, while `meanwhile` runs.
    @Sendable func world(_ name: String, _ meanwhile: @escaping @Sendable () throws -> Void = {}) throws -> Set<String>
    {
      try Simulation().run {
        let job = co_launch(name: name) { try co_delay(.seconds(1)) }
        try co_yield()
        try meanwhile()
        let listed = names()
        try job.join()
        return listed
      }
    }
    /// What `body` returns on a thread of its own, for which the caller's thread waits.
    @Sendable func elsewhere(_ body: @escaping @Sendable () throws -> Set<String>) throws -> Set<String> {
      let (listed, isOver) = (Locked<Set<String>>([]), DispatchSemaphore(value: 0))
      startThread {
        listed.current = (try? body()) ?? ["an error"]
        isOver.signal()
      }
      isOver.wait()
      return listed.current
    }
    let listed = try await onOwnThread {
      let (inner, ofProcess) = (Locked<Set<String>>([]), Locked<Set<String>>([]))
      let outer = try world("world A") {
        inner.current = try elsewhere { try world("world B") }
        ofProcess.current = try elsewhere(names)
      }
      return (outer: outer, inner: inner.current, ofProcess: ofProcess.current)
    }
    end.fulfill(1)
    _ = try await outside.value
    #expect(listed.outer == ["body", "world A"] && listed.inner == ["body", "world B"], "\(listed)")
    #expect(listed.ofProcess.contains("outside") && listed.ofProcess.isDisjoint(with: ["world A", "world B"]))
  }
}
