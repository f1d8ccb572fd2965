import CoroutineTesting
import Dispatch
import Testing

@testable import Coroutine

/// Children that were cancelled before they began, on queues that are blocked.
@Suite("A child that never begins", .timeLimit(.minutes(10)))
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

    /// Whether it may come before the scope opens, which then launches nothing: another worker fires the timer of one
    /// whose thread gets no processor.
    var mayComeFirst: Bool { self == .deadline || self == .shortDeadline }
  }

  private static let kinds: [Opened] = [{ _ = try co_scope($0) }, { _ = try co_scope(failures: .isolated, $0) }]

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
    // The scope does not wait for the captures: their queue releases them.
    try settleWorld()
    #expect(trace.all == [how == "deadline" ? "TimeoutError" : "Oops(scope)"])
  }

  @Test(.tags(.realClock), arguments: Ending.allCases)
  func `does not hold its scope while its queue is blocked, and is released by the queue`(_ ending: Ending) async throws
  {
    for home in [taggedQueue("home"), nil] {
      for open in Self.kinds {
        let blocked = try await BlockedQueue()
        let (launched, ran, released) = (Flag(), Flag(), Trace())
        let seen = try await onCoroutine(on: home) {
          let seen = outcome {
            try ending.end(open) { scope in
              launched.raise()
              let held = Tracked { released(currentTag ?? "worker") }
              return scope.launch(on: blocked.queue) {
                held.use()
                ran.raise()
              }
            }
          }
          return "\(seen) \(released.all)"
        }
        #expect(ending.error.contains { seen == "\($0) []" }, "\(seen)")
        try await blocked.releaseAndSettle()
        #expect(!ran.isRaised)
        #expect(launched.isRaised || ending.mayComeFirst)
        #expect(released.all == (launched.isRaised ? ["blocked"] : []))
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

  @Test func `in every order, either runs or never does, and is released once`() throws {
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
      try settleWorld()
      let text = trace.all.joined(separator: " ")
      outcomes.withLock { _ = $0.insert(text) }
      guard ["ran released Oops(end)", "released Oops(end)", "Oops(end) released"].contains(text) else {
        throw Oops(text)
      }
    }
    #expect(found.failure == nil, "\(found.failure.map { "\($0)" } ?? "")")
    #expect(outcomes.current.count >= 2)
  }
}
