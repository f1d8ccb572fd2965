import Coroutine
import Testing

@Suite("Start modes", .timeLimit(.minutes(10)))
struct StartModeTests {
  // MARK: immediate

  @Test func `an immediate body runs on the caller's thread until it first suspends`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let job = co_launch(start: .immediate) {
        trace("first part")
        try co_yield()
        trace("second part")
      }
      trace("launched")
      try job.join()
      trace("joined")
    }
    #expect(trace.all == ["first part", "launched", "second part", "joined"])
  }

  @Test func `an immediate body that never suspends has ended when co_launch returns`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch(start: .immediate) { 7 }
      return [job.isFinished, try job.join() == 7]
    }
    #expect(seen == [true, true])
  }

  @Test func `an immediate body runs before jobs that are ready already`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let first = co_launch { trace("queued") }
      try co_launch(start: .immediate) { trace("immediate") }.join()
      try first.join()
    }
    #expect(trace.all == ["immediate", "queued"])
  }

  @Test func `a failure of an immediate body reaches join, not the caller of co_launch`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch(start: .immediate) { () throws -> Void in throw Oops("now") }
      return outcome { try job.join() }
    }
    #expect(seen == "Oops(now)")
  }

  @Test func `immediate bodies nest, and each caller continues as itself`() async throws {
    let trace = Trace()
    let local = CoroutineLocal(default: "none")
    try await onSerialQueue {
      try local.withValue("outer") {
        let job = co_launch(start: .immediate) {
          try local.withValue("middle") {
            let inner = co_launch(start: .immediate) {
              try local.withValue("inner") {
                try co_yield()
                trace(local.value)
              }
            }
            trace(local.value)
            try inner.join()
          }
        }
        trace(local.value)
        try job.join()
      }
    }
    #expect(trace.all == ["middle", "outer", "inner"])
  }

  @Test func `an immediate body may cancel its caller, whose next suspension throws`() async throws {
    let seen = try await onSerialQueue {
      let handle = Promise<Job<String>>()
      let caller = co_launch {
        let me = try co_await(handle)
        try co_launch(start: .immediate) { me.cancel(Oops("by child")) }.join()
        return "went on"
      }
      handle.fulfill(caller)
      return outcome { try caller.join() }
    }
    #expect(seen == "Oops(by child)")
  }

  // MARK: lazy

  @Test func `a lazy body waits for the first join`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let job = co_launch(start: .lazy) {
        trace("body")
        return 1
      }
      for _ in 0..<3 { try co_yield() }
      trace("not finished: \(!job.isFinished)")
      trace("joined \(try job.join())")
      trace("again \(try job.join())")
    }
    #expect(trace.all == ["not finished: true", "body", "joined 1", "again 1"])
  }

  @Test func `co_await starts a lazy body`() async throws {
    #expect(try await onCoroutine { try co_await(co_launch(start: .lazy) { 2 }) } == 2)
  }

  @Test func `value starts a lazy body`() async throws {
    #expect(try await co_launch(start: .lazy) { 3 }.value == 3)
  }

  @Test func `wait starts a lazy body`() async throws {
    #expect(try await onOwnThread { try co_launch(start: .lazy) { 4 }.blockingWait() } == 4)
  }

  @Test func `the combinators start lazy bodies`() async throws {
    let all = try await onCoroutine { try co_all((1...5).map { n in co_launch(start: .lazy) { n } }) }
    #expect(all == [1, 2, 3, 4, 5])
    let first = try await onCoroutine { try co_race([co_launch(start: .lazy) { 6 }]) }
    #expect(first == 6)
  }

  /// How a chain of jobs, each of which has the one before, ends without having begun.
  enum ChainEnd: String, CaseIterable, Codable, Sendable {
    case releasedOnThread, releasedInCoroutine, releasedWithOtherChain, cancelled, failed

    /// Makes chains of `count` jobs whose bodies hold `captured`, and ends them.
    func make(_ count: Int, _ captured: Counted) throws {
      func chain() -> Job<Int> {
        (0..<count).reduce(co_launch(start: .lazy) { captured.number }) { last, _ in
          co_launch(start: .lazy) { try last.join() + captured.number }
        }
      }
      switch self {
      case .releasedOnThread: _ = chain()
      case .releasedInCoroutine: try co_launch(stack: .bytes(64 << 10)) { _ = chain() }.blockingWait()
      case .releasedWithOtherChain:
        let (one, other) = (chain(), chain())
        _ = co_launch(start: .lazy) { try one.join() + other.join() }
      case .cancelled: chain().cancel()
      case .failed:
        let last = chain()
        _ = try? co_launch(stack: .bytes(1 << 30)) { try last.join() }.blockingWait()
      }
    }
  }

  final class Counted: Sendable {
    let number = 1
    private let isReleased: Promise<Void>
    init(_ isReleased: Promise<Void>) { self.isReleased = isReleased }
    deinit { isReleased.fulfill() }
  }

  // In a process of its own, because an overflow ends it.
  @Test(arguments: ChainEnd.allCases)
  func `the release of a chain of jobs that have not begun needs no more stack than that of one`(_ end: ChainEnd) async
  {
    await #expect(processExitsWith: .success) { [end = end as ChainEnd] in
      let isReleased = Promise<Void>()
      try end.make(30_000, Counted(isReleased))
      try await isReleased.value
    }
  }

  /// Waits when it is released.
  private final class Waiting: Sendable {
    let gate: Gate
    init(_ gate: Gate) { self.gate = gate }
    deinit { try? gate.pass() }
  }

  private static func dropChain(_ isReleased: Promise<Void>) {
    let counted = Counted(isReleased)
    let inner = co_launch(start: .lazy) { withExtendedLifetime(counted) {} }
    _ = co_launch(start: .lazy) { try inner.join() }
  }

  @Test(.inWorlds) func `a release that waits keeps no other coroutine's captures`() throws {
    let gate = Gate()
    let first = co_launch {
      _ = co_launch(start: .lazy) { [waiting = Waiting(gate)] in withExtendedLifetime(waiting) {} }
    }
    try settleWorld()
    #expect(!first.isFinished)
    let isReleased = Promise<Void>()
    let second = co_launch {
      Self.dropChain(isReleased)
      return isReleased.isSettled
    }
    #expect(try second.join())
    gate.open()
    try first.join()
  }

  @Test func `many joiners start a lazy body once`() async throws {
    let trace = Trace()
    let sum = try await onSerialQueue {
      let job = co_launch(start: .lazy) {
        trace("body")
        try co_yield()
        return 1
      }
      return try (0..<10).map { _ in co_launch { try job.join() } }.reduce(0) { try $0 + $1.join() }
    }
    #expect(sum == 10)
    #expect(trace.all == ["body"])
  }

  @Test func `a lazy job that is never joined never runs, and is released with its handle`() async throws {
    let trace = Trace()
    let released = Gate()
    drop(co_launch(start: .lazy, holding(Tracked { released.open() }, trace)))
    try await onCoroutine { try released.pass() }
    #expect(trace.all.isEmpty)
  }

  private func holding(_ held: Tracked, _ trace: Trace) -> @Sendable () -> Void {
    {
      trace("body")
      held.use()
    }
  }

  private func drop(_ job: consuming Job<Void>) {
    _ = consume job
  }
}
