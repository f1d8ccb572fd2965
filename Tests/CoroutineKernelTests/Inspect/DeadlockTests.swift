import Glibc
import Testing

@testable import Coroutine

/// Circles of coroutines that wait for one another, and waits that look like one and are none.
@Suite("CoroutineRuntime.deadlocks", .timeLimit(.minutes(10)))
struct DeadlockTests {
  private typealias Question = Reply<Int>

  /// Runs `body` in virtual time; it may leave coroutines behind.
  private func inWorld(_ body: @escaping @Sendable () throws -> Void) async throws {
    try await onOwnThread { try Simulation().run(body) }
  }

  /// Lets everything wait that can wait, and returns the names of each circle's members.
  private static func circles() throws -> [[String]] {
    try co_delay(.milliseconds(1))
    return CoroutineRuntime.deadlocks().map { $0.map { $0.name ?? "?" } }
  }

  /// Launches a coroutine that holds `first` and wants `second`.
  @discardableResult
  private static func cross(_ name: String, _ first: FairMutex, _ second: FairMutex) -> Job<Void> {
    co_launch(name: name) {
      try first.withLock { () throws -> Void in
        try co_yield()
        try second.withLock {}
      }
    }
  }

  // MARK: Each kind of wait

  @Test func `two coroutines that want each other's lock are one, and each names the owner`() async throws {
    try await inWorld {
      let (one, other) = (FairMutex(), FairMutex())
      Self.cross("a", one, other)
      Self.cross("b", other, one)
      try co_delay(.milliseconds(1))
      let circles = CoroutineRuntime.deadlocks()
      #expect(circles.count == 1)
      guard let circle = circles.first, circle.count == 2 else { return }
      #expect(circle.map(\.name) == ["a", "b"])
      #expect(circle.map { $0.wait?.owner } == [circle[1].id, circle[0].id])
      #expect(circle.allSatisfy { $0.state == .waiting && $0.wait?.kind == "lock" })
      #expect(isSanitized || circle.allSatisfy { !$0.stack.isEmpty })
    }
  }

  @Test func `coroutines that join each other are one`() async throws {
    try await inWorld {
      let jobs = Locked<[Job<Void>]>([])
      jobs.current = ["a", "b", "c"].enumerated().map { index, name in
        co_launch(name: name) {
          try co_yield()
          try jobs.current[(index + 1) % 3].join()
        }
      }
      let circles = try Self.circles()
      #expect(circles == [["a", "b", "c"]])
    }
  }

  @Test func `a child that joins the owner of its scope is one with it`() async throws {
    try await inWorld {
      let owner = Locked<Job<Void>?>(nil)
      owner.current = co_launch(name: "owner") {
        try co_scope { scope in
          scope.launch(name: "innocent") { try co_delay(.seconds(1)) }
          scope.launch(name: "child") {
            try co_yield()
            try owner.current?.join()
          }
        }
      }
      let circles = try Self.circles()
      #expect(circles == [["owner", "child"]])
    }
  }

  @Test func `actors that ask each other are one`() async throws {
    try await inWorld {
      let partner = Locked<ActorRef<Question>?>(nil)
      let one = co_actor(of: Question.self, name: "one") { mailbox in
        while let question = try mailbox.receive() { question(try partner.current!.ask { $0 }) }
      }
      partner.current = co_actor(of: Question.self, name: "other") { mailbox in
        while let question = try mailbox.receive() { question(try one.ask { $0 }) }
      }
      co_launch(name: "outside") { _ = try one.ask { $0 } }
      let circles = try Self.circles()
      #expect(circles == [["one", "other"]])
    }
  }

  @Test func `an ask that was delegated, or whose actor has a coroutine that goes on, is none`() async throws {
    try await inWorld {
      let (lock, kept) = (FairMutex(), Locked<[Question]>([]))
      for delegates in [true, false] {
        let actor = co_actor(of: Question.self, name: "actor") { mailbox in
          while let question = try mailbox.receive() {
            if delegates { question.delegate() }
            kept.withLock { $0.append(question) }
            if !delegates { mailbox.launch { try co_delay(.seconds(1)) } }
            try lock.withLock {}
          }
        }
        let asker = co_launch(name: "asker") { try lock.withLock { _ = try actor.ask { $0 } } }
        let circles = try Self.circles()
        #expect(circles == [])
        kept.withLock { $0.removeLast() }(1)
        try asker.join()
        actor.cancel()
      }
    }
  }

  @Test func `a lock, a join, a scope and an ask make one circle`() async throws {
    try await inWorld {
      let (lock, joined) = (FairMutex(), Locked<Job<Void>?>(nil))
      let actor = co_actor(of: Reply<Int>.self, name: "actor") { mailbox in
        while let question = try mailbox.receive() {
          try joined.current?.join()
          question(1)
        }
      }
      joined.current = co_launch(name: "owner") {
        try co_scope { scope in _ = scope.launch(name: "child") { try lock.withLock {} } }
      }
      co_launch(name: "asker") { try lock.withLock { _ = try actor.ask { $0 } } }
      co_launch(name: "behind") { try lock.withLock {} }
      let circles = try Self.circles()
      // The child may have come first.
      if circles.isEmpty { return }
      #expect(circles.map(Set.init) == [["actor", "owner", "child", "asker"]])
    }
  }

  @Test func `a writer, a body of Once, and promises that jobs settle have owners`() async throws {
    try await inWorld {
      let (rw, lock, once) = (FairReadWriteLock(), FairMutex(), Once<Int>())
      co_launch(name: "writer") {
        try rw.withWriteLock { () throws -> Void in
          try co_yield()
          try lock.withLock {}
        }
      }
      co_launch(name: "reader") {
        try lock.withLock { () throws -> Void in
          try co_yield()
          try rw.withReadLock {}
        }
      }
      let copied = Locked<Promise<Int>?>(nil)
      let runner = co_launch(name: "runner") { try once.run { try co_await(copied.current!) } }
      copied.current = runner.uncancelled
      let circles = try Self.circles().map(Set.init)
      #expect(circles == [["writer", "reader"], ["runner"]])
    }
  }

  // MARK: Ways out

  @Test func `a select counts if every case leads into the circle, and not with a way out`() async throws {
    for way in ["none", "channel", "timeout", "lock of one that goes on"] {
      try await inWorld {
        let (one, other, third) = (FairMutex(), FairMutex(), FairMutex())
        let channel = Channel<Int>()
        co_launch(name: "alive") { try third.withLock { try co_delay(.seconds(1)) } }
        co_launch(name: "selects") {
          try one.withLock { () throws -> Void in
            try co_delay(.microseconds(1))
            try co_select {
              other.onLock { other.unlock() }
              if way == "channel" { channel.onReceive { _ in } }
              if way == "timeout" { SelectCase.onTimeout(.seconds(1)) {} }
              if way == "lock of one that goes on" { third.onLock { third.unlock() } }
            }
          }
        }
        Self.cross("locks", other, one)
        let circles = try Self.circles()
        #expect(circles == (way == "none" ? [["selects", "locks"]] : []), "\(way)")
      }
    }
  }

  @Test func `a deadline around a member or its scope ends it, and one outside of a shield does not`() async throws {
    for place in ["member", "scope", "shielded", "never"] {
      try await inWorld {
        let (one, other) = (FairMutex(), FairMutex())
        let deadline: Duration = place == "never" ? .seconds(Int64.max) : .seconds(1)
        co_launch(name: "timed") {
          try one.withLock { () throws -> Void in
            try co_delay(.microseconds(10))
            switch place {
            case "shielded": try co_timeout(deadline) { try co_shield { try other.withLock {} } }
            case "scope": try other.withLock {}
            default: try co_timeout(deadline) { try other.withLock {} }
            }
          }
        }
        co_launch(name: "owner") {
          try co_timeout(place == "scope" ? deadline : nil) {
            try co_scope { scope in
              try co_scope { inner in
                inner.launch(name: "child") {
                  try other.withLock { () throws -> Void in
                    try co_delay(.microseconds(10))
                    try one.withLock {}
                  }
                }
                _ = scope
                try co_delay(.seconds(2))
              }
            }
          }
        }
        let circles = try Self.circles().map(Set.init)
        #expect(circles == (place == "shielded" || place == "never" ? [["timed", "child"]] : []), "\(place)")
      }
    }
  }

  @Test func `it ends with a cancellation, and who only waits for it is no member`() async throws {
    try await inWorld {
      let (one, other) = (FairMutex(), FairMutex())
      let a = Self.cross("a", one, other)
      let b = Self.cross("b", other, one)
      co_launch(name: "behind") { try one.withLock {} }
      co_launch(name: "joins") { try b.join() }
      let circles = try Self.circles()
      #expect(circles == [["a", "b"]])
      a.cancel()
      #expect(CoroutineRuntime.deadlocks().isEmpty)
      let later = try Self.circles()
      #expect(later == [])
      #expect(b.isFinished)
    }
  }

  @Test func `an owner that works or has ended, a semaphore and a channel make none`() async throws {
    try await inWorld {
      let (one, other, lost) = (FairMutex(), FairMutex(), FairMutex())
      let (semaphore, channel) = (FairSemaphore(1), Channel<Int>())
      co_launch(name: "works") { try one.withLock { try co_delay(.seconds(1)) } }
      co_launch(name: "waits") { try other.withLock { () throws -> Void in try one.withLock {} } }
      co_launch(name: "loses") { try lost.lock() }
      co_launch(name: "wants") { try lost.withLock {} }
      co_launch(name: "acquires") { () throws -> Void in
        try semaphore.acquire()
        _ = try channel.receive()
      }
      co_launch(name: "sends") { () throws -> Void in
        try semaphore.acquire()
        try channel.send(1)
      }
      let circles = try Self.circles()
      #expect(circles == [])
    }
  }

  // MARK: The handler

  @Test func `a handler is told once of each circle, and not of one that does not exist`() async {
    await #expect(processExitsWith: .success) {
      let told = Locked<[[String]]>([])
      CoroutineRuntime.onDeadlock { circle in told.withLock { $0.append(circle.map { $0.name ?? "?" }) } }
      let locks = (0..<6).map { _ in FairMutex() }
      let isHeld = (0..<6).map { _ in Promise<Void>() }
      var jobs: [Job<Void>] = []
      for pair in 0..<3 {
        for (name, first, second) in [("a", 0, 1), ("b", 1, 0)] {
          let (mine, others) = (isHeld[2 * pair + first], isHeld[2 * pair + second])
          let (first, second, last) = (locks[2 * pair + first], locks[2 * pair + second], pair == 2)
          jobs.append(
            co_launch(name: "\(name)\(pair)") {
              try first.withLock {
                mine.fulfill()
                try co_await(others)
                try co_timeout(last ? .milliseconds(300) : nil) { try second.withLock {} }
              }
            }
          )
        }
      }
      while told.current.count < 2 { sched_yield() }
      // Searched again several times, and once the third pair has ended.
      for job in jobs[4...] { _ = outcome { try job.blockingWait() } }
      precondition(Set(told.current.map { Set($0) }) == [["a0", "b0"], ["a1", "b1"]] && told.current.count == 2)
      CoroutineRuntime.onDeadlock(nil)
      for job in jobs { job.cancel() }
    }
  }
}
