import CTestSupport
import Coroutine
import Dispatch
import Testing

/// What waits, apart from the verbs of `WaitingVerb`.
private enum Route: String, CaseIterable, Codable {
  case yieldOfBody, delegationOfBody, waitOfBody, iteration, mailbox, host, immediateStart
  case jobOnThread, promiseOnThread, jobInTask

  var isYield: Bool { self == .yieldOfBody || self == .delegationOfBody }

  /// Waits with the lock held; the process ends there.
  func wait(_ mutex: ThreadMutex<Int>) throws {
    switch self {
    case .yieldOfBody:
      let numbers = co_sequence(of: Int.self) { yield in try mutex.withLock { _ in _ = try yield(1) } }
      _ = numbers.next()
    case .delegationOfBody:
      let inner = co_sequence(of: Int.self) { yield in try yield(1) }
      let outer = co_sequence(of: Int.self) { yield in try mutex.withLock { _ in try yield.all(of: inner) } }
      _ = outer.next()
    case .waitOfBody:
      // The consumer holds the lock. The body's wait would suspend it as well.
      try inCoroutine {
        let numbers = co_sequence(of: Int.self) { yield in
          try co_delay(.microseconds(1))
          try yield(1)
        }
        _ = mutex.withLock { _ in numbers.next() }
      }
    case .iteration:
      let channel = Channel<Int>(1)
      channel.close()
      try inCoroutine { try mutex.withLock { _ in while try channel.receive() != nil {} } }
    case .mailbox:
      let actor = co_actor(of: Question.self) { mailbox in try mutex.withLock { _ in _ = try mailbox.receive() } }
      _ = actor.tryTell(Question())
      _ = try actor.job.blockingWait()
    case .host:
      let host = HostedScheduler(Loop())
      try inCoroutine { try mutex.withLock { _ in try co_switch(to: host) } }
    case .immediateStart:
      // The launched coroutine has a lock of its own.
      try inCoroutine {
        try co_launch(start: .immediate) { try mutex.withLock { _ in try co_yield() } }.join()
      }
    case .jobOnThread: try mutex.withLock { _ in try co_launch {}.blockingWait() }
    case .promiseOnThread: _ = try mutex.withLock { _ in try Promise.value(1).blockingWait() }
    case .jobInTask:
      let ended = DispatchSemaphore(value: 0)
      Task {
        try waits(mutex)
        ended.signal()
      }
      ended.wait()
    }
  }

  /// Code of a Task that calls synchronous code.
  private func waits(_ mutex: ThreadMutex<Int>) throws { try mutex.withLock { _ in try co_launch {}.blockingWait() } }

  private func inCoroutine(_ body: @escaping @Sendable () throws -> Void) throws { try co_launch(body).blockingWait() }
}

extension WaitingVerb: Codable {}

/// Each test runs in a process of its own, which the check of debug builds ends.
@Suite("A lock of threads is not held over a wait", .enabled(if: cts_checks_allocations()), .timeLimit(.minutes(10)))
struct ThreadMutexWaitTests {
  private static let sentence = "Coroutine: a wait while the thread holds a ThreadMutex; do it outside of the lock"
  private static let sentenceOfYield =
    "Coroutine: a yield of a generator's body while the thread holds a ThreadMutex; do it outside of the lock"

  // Also where the wait would be satisfied at once: whether it then suspends depends on the time slice.
  @Test(arguments: WaitingVerb.allCases)
  func `a verb that may wait ends a debug build`(_ verb: WaitingVerb) async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { [verb] in
      let props = try await WaitingVerb.Props()
      let mutex = ThreadMutex(0)
      try await onCoroutine {
        try mutex.withLock { _ in try verb.callWhereItCouldFinishAtOnce(props, Trace()) }
      }
    }
    #expect(died?.said(Self.sentence) == true)
  }

  @Test(arguments: Route.allCases)
  fileprivate func `what else may wait ends a debug build`(_ route: Route) async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { [route] in
      try synchronously { try route.wait(ThreadMutex(0)) }
    }
    #expect(died?.said(route.isYield ? Self.sentenceOfYield : Self.sentence) == true)
  }
}

@Suite("A lock of threads", .timeLimit(.minutes(10)))
struct ThreadMutexFlowTests {
  // Not all that switches stacks waits.
  @Test func `with the lock held, a coroutine steps a generator, launches, and asks whether it is cancelled`()
    async throws
  {
    let mutex = ThreadMutex(0)
    try await co_launch {
      let numbers = co_sequence(of: Int.self) { yield in for number in 1...3 { try yield(number) } }
      let job = try mutex.withLock { value in
        while let number = numbers.next() { value += number }
        try co_checkCancelled()
        // Its part ends at the wait, which is not the launcher's.
        return co_launch(start: .immediate) { try co_delay(.microseconds(1)) }
      }
      try job.join()
    }.value
    #expect(mutex.withLock { $0 } == 6)
  }

  @Test func `a generator's body takes the lock between its yields, whoever steps it`() async throws {
    let (mutex, outer) = (ThreadMutex(0), ThreadMutex(0))
    let numbers = co_sequence(of: Int.self) { yield in
      for number in 1...4 {
        mutex.withLock { $0 += number }
        try yield(number)
      }
    }
    #expect(outer.withLock { _ in numbers.next() } == 1)
    #expect(numbers.next() == 2)
    try await co_launch {
      #expect(outer.withLock { _ in numbers.next() } == 3)
      try co_yield()
      #expect(numbers.next() == 4)
      try co_yield()
    }.value
    #expect(mutex.withLock { $0 } == 10)
  }

  @Test func `after a wait of a generator's body on another thread, nothing counts as held`() async throws {
    let (mutex, host) = (ThreadMutex(0), HostedScheduler(Loop()))
    try await co_launch {
      let numbers = co_sequence(of: Int.self) { yield in
        for number in 1...4 {
          try co_switch(to: host)
          mutex.withLock { $0 += number }
          try yield(number)
        }
      }
      while let number = numbers.next() {
        mutex.withLock { $0 += number }
        try co_yield()
      }
    }.value
    #expect(mutex.withLock { $0 } == 20)
  }
}
