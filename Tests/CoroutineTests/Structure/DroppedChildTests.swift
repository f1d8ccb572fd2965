import CoroutineTesting
import Dispatch
import Testing

@testable import Coroutine

/// Children that were cancelled before they began, on queues that are blocked.
@Suite("A child that never begins", .timeLimit(.minutes(5)))
struct DroppedChildTests {
  typealias Opened = @Sendable (_ body: (Scope) throws -> Void) throws -> Void

  /// The ways in which a scope with a child that cannot begin ends early.
  enum Ending: CaseIterable {
    case scopeCancel, failure, sibling, deadline, shortDeadline, jobCancel, childCancel, stop

    func end(_ open: @escaping Opened, _ launch: @escaping @Sendable (Scope) -> Job<Void>) throws {
      switch self {
      case .scopeCancel:
        try open { scope in
          _ = launch(scope)
          scope.cancel(Oops("end"))
          try co_checkCancelled()
        }
      case .failure:
        try open { scope in
          _ = launch(scope)
          throw Oops("end")
        }
      case .sibling:
        let isLaunched = Gate()
        try co_scope { scope in
          scope.launch {
            try open { scope in
              _ = launch(scope)
              isLaunched.open()
            }
          }
          scope.launch {
            try isLaunched.pass()
            throw Oops("end")
          }
        }
      case .deadline:
        try co_timeout(.milliseconds(10)) { try open { _ = launch($0) } }
      case .shortDeadline:
        try co_timeout(.nanoseconds(1)) { try open { _ = launch($0) } }
      case .jobCancel:
        let isLaunched = Gate()
        let ended = co_launch {
          try open { scope in
            _ = launch(scope)
            isLaunched.open()
          }
        }
        try isLaunched.pass()
        ended.cancel(Oops("end"))
        try ended.join()
      case .childCancel:
        try open { launch($0).cancel() }
        throw Oops("end")
      case .stop:
        try open { scope in
          _ = launch(scope)
          scope.stop(within: .milliseconds(5))
          try co_delay(.seconds(600))
        }
      }
    }

    var error: [String] {
      switch self {
      case .deadline, .shortDeadline: ["TimeoutError"]
      case .stop: ["CancellationError"]
      default: ["Oops(end)"]
      }
    }
  }

  private static let kinds: [Opened] = [{ _ = try co_scope($0) }, { _ = try co_scope(failures: .isolated, $0) }]

  /// The scope was signalled, and its frame is gone: that is no cancellation of what the captures do.
  @Test func `may change the queue as its captures are released, although the scope was cancelled`() async throws {
    final class Closer: Sendable {
      let close: @Sendable () -> Void
      init(_ close: @escaping @Sendable () -> Void) { self.close = close }
      func use() {}
      deinit { close() }
    }
    let blocked = try await BlockedQueue()
    let ledger = Ledger(on: taggedQueue("ledger"))
    let closed = Locked("")
    let seen = try await onCoroutine {
      outcome {
        try co_scope { scope in
          let closer = Closer { closed.current = outcome { try co_isolated(ledger) { _ in currentTag ?? "" } } }
          scope.launch(on: blocked.queue) { closer.use() }
          throw Oops("body")
        }
      }
    }
    #expect(seen == "Oops(body)" && closed.current == "ledger")
    try await blocked.releaseAndSettle()
  }

  /// The scope is cancelled while the captures are released: as above.
  @Test(.inWorlds) func `may change the queue as its captures are released, and cancel the scope before`() throws {
    let trace = Trace()
    let seen = outcome {
      try co_scope { scope in
        Self.launch(in: scope, on: taggedQueue("far")) {
          scope.cancel(Oops("late"))
          trace(outcome { try onWorldQueue { 7 } })
          trace(outcome { try co_switch(to: taggedQueue("away")) })
        }.cancel()
      }
    }
    #expect(seen == "()")
    #expect(trace.all == ["7", "()"])
  }

  /// The child has settled, and the code that its captures run is in its coroutine, on a stack.
  @Test(.inWorlds, arguments: ["scope", "deadline"])
  func `may wait as its queue releases its captures, and is cancelled there`(_ how: String) throws {
    let trace = Trace()
    let opened = Locked<Scope?>(nil)
    let far = taggedQueue("far")
    // Leaves its stack to the next one.
    try co_launch(on: far) {}.join()
    try co_scope(failures: .isolated) { scope in
      Self.launch(in: scope, on: far) {
        co_shield {
          trace(
            outcome {
              if how == "deadline" { try co_timeout(.seconds(1)) { try waitForCancellation() } }
              try co_scope { inner in
                opened.current = inner
                try waitForCancellation()
              }
            }
          )
        }
      }.cancel()
      try co_delay(.seconds(2))
      opened.current?.cancel(Oops("scope"))
    }
    opened.current = nil
    #expect(trace.all == [how == "deadline" ? "TimeoutError" : "Oops(scope)"])
  }

  @Test(.tags(.realClock), arguments: Ending.allCases)
  func `holds neither its scope nor what it has captured, while its queue is blocked`(_ ending: Ending) async throws {
    for home in [taggedQueue("home"), nil] {
      for open in Self.kinds {
        let blocked = try await BlockedQueue()
        let (ran, released) = (Flag(), Trace())
        let seen = try await onCoroutine(on: home) {
          let seen = outcome {
            try ending.end(open) { scope in
              let held = Tracked { released(currentTag ?? "worker") }
              return scope.launch(on: blocked.queue) {
                held.use()
                ran.raise()
              }
            }
          }
          // Before the scope has ended, by its coroutine.
          return "\(seen) \(released.all)"
        }
        #expect(ending.error.contains { seen == "\($0) [\"\(home == nil ? "worker" : "home")\"]" }, "\(seen)")
        try await blocked.releaseAndSettle()
        #expect(!ran.isRaised)
        #expect(released.count == 1)
      }
    }
  }

  @Test func `may use a closure that does not escape its scope`() async throws {
    let blocked = try await BlockedQueue()
    let calls = Locked(0)
    let seen = try await onCoroutine { outcome { try Self.twice(on: blocked.queue) { calls.withLock { $0 += 1 } } } }
    #expect(seen == "Oops(end)")
    try await blocked.releaseAndSettle()
    #expect(calls.current == 0)
  }

  /// Ends the process if a copy of the closure is left.
  private static func twice(on queue: DispatchQueue, _ body: @Sendable () -> Void) throws {
    try withoutActuallyEscaping(body) { body in
      try co_scope { scope in
        for _ in 0..<2 { scope.launch(on: queue) { body() } }
        throw Oops("end")
      }
    }
  }

  @Test func `is released by its queue, if its scope stays open`() async throws {
    let blocked = try await BlockedQueue()
    let (released, isOpen) = (Gate(), Gate())
    let trace = Trace()
    let owner = co_launch(on: taggedQueue("home")) {
      try co_scope(failures: .isolated) { scope in
        Self.launch(in: scope, on: blocked.queue) {
          trace(currentTag ?? "")
          released.open()
        }.cancel()
        isOpen.open()
        try waitForCancellation()
      }
    }
    try await isOpen.value
    #expect(trace.all.isEmpty)
    blocked.release()
    try await released.value
    owner.cancel()
    _ = try? await owner.value
    #expect(trace.all == ["blocked"])
  }

  /// Launches a child that alone holds an object.
  private static func launch(in scope: Scope, on queue: DispatchQueue, _ onRelease: @escaping @Sendable () -> Void)
    -> Job<Void>
  {
    let held = Tracked(onRelease)
    return scope.launch(on: queue) { held.use() }
  }

  @Test func `may release what waits, launches another child, or cancels the scope`() async throws {
    let blocked = try await BlockedQueue()
    let trace = Trace()
    let seen = try await onCoroutine(on: taggedQueue("home")) {
      outcome {
        try co_scope { scope in
          let held = Tracked {
            trace(outcome { try co_shield { try co_yield() } })
            scope.launch(on: blocked.queue) { trace("never") }
            scope.cancel()
          }
          scope.launch(on: blocked.queue) { held.use() }
          throw Oops("end")
        }
      }
    }
    #expect(seen == "Oops(end)")
    #expect(trace.all == ["()"])
    try await blocked.releaseAndSettle()
    #expect(trace.all == ["()"])
  }

  @Test func `that is launched in a cancelled scope does not hold it either`() async throws {
    let blocked = try await BlockedQueue()
    let released = Locked(0)
    let seen = try await onCoroutine {
      outcome {
        try co_scope { scope in
          scope.cancel(Oops("end"))
          for _ in 0..<100 {
            let held = Tracked { released.withLock { $0 += 1 } }
            scope.launch(on: blocked.queue) { held.use() }
          }
          try co_checkCancelled()
        }
      }
    }
    #expect(seen == "Oops(end)")
    #expect(released.current == 100)
  }

  @Test func `leaves the other children alone, which are waited for`() async throws {
    let blocked = try await BlockedQueue()
    let (isInside, release, hasEnded) = (Flag(), DispatchSemaphore(value: 0), Flag())
    let job = co_launch {
      try co_scope { scope in
        scope.launch(on: taggedQueue("busy")) {
          isInside.raise()
          release.wait()
          hasEnded.raise()
        }
        while !isInside.isRaised { try co_yield() }
        scope.launch(on: blocked.queue) {}
        throw Oops("end")
      }
    }
    while !isInside.isRaised { await Task.yield() }
    release.signal()
    #expect(await asyncOutcome { try await job.value } == "Oops(end)")
    #expect(hasEnded.isRaised)
  }

  @Test func `in every order, either runs or never does, and is released once, before its scope ends`() throws {
    let outcomes = Locked<Set<String>>([])
    let found = explore(.exhaustive(preemptions: 2)) {
      let trace = Trace()
      let (near, far) = (taggedQueue("near"), taggedQueue("far"))
      try co_launch(on: near) {
        let seen = outcome {
          try co_scope { scope in
            let held = Tracked { trace("released") }
            let child = scope.launch(on: far) {
              trace("ran")
              held.use()
            }
            scope.launch { child.cancel(Oops("child")) }
            scope.launch { throw Oops("end") }
          }
        }
        trace(seen)
      }.join()
      let text = trace.all.joined(separator: " ")
      outcomes.withLock { _ = $0.insert(text) }
      guard ["ran released Oops(end)", "released Oops(end)"].contains(text) else { throw Oops(text) }
    }
    #expect(found.failure == nil, "\(found.failure.map { "\($0)" } ?? "")")
    #expect(outcomes.current.count == 2)
  }
}
