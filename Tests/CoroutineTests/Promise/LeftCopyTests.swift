import Dispatch
import Glibc
import Testing

@testable import Coroutine

/// A failure that a promise is told of at the moment at which its last dependent leaves it.
///
/// Nobody sees the failure there: so the source reports it, once.
@Suite("Promise: a failure that a promise is told of as it is left", .timeLimit(.minutes(10)))
struct LeftCopyTests {
  enum Passing: CaseIterable { case copy, race }

  /// Makes a promise that passes outcomes on, and the dependent that alone keeps it.
  private static func passing(
    _ source: Promise<Int>,
    _ other: Promise<Int>,
    _ kind: Passing
  ) -> (dependent: Promise<Int>, passing: CompletionRef) {
    let passing = kind == .copy ? source.uncancelled : Promise.race([source, other])
    return (passing.uncancelled, passing.completion)
  }

  /// The leaving thread has settled the promise as of no use, and waits for the source's lock.
  ///
  /// So the promise is in the source's queue, and in memory, when the source settles.
  @Test(arguments: Passing.allCases)
  func `is reported by its source once`(_ kind: Passing) async throws {
    let errors = UnhandledErrors()
    try await onOwnThread { [failure = errors.failure("unseen")] in Self.settle(kind, failure) }
    #expect(try await errors.settledLabels() == ["unseen"])
  }

  private static func settle(_ kind: Passing, _ failure: any Error) {
    let (source, other) = (Promise<Int>(), Promise<Int>())
    let (dependent, passing) = Self.passing(source, other, kind)
    let (isLocked, hasLeft) = (Flag(), DispatchSemaphore(value: 0))
    startThread {
      while !isLocked.isRaised { sched_yield() }
      dependent.cancel()
      hasLeft.signal()
    }
    source.completion.lock()
    isLocked.raise()
    while !passing.known.isSettled { sched_yield() }
    // As `reject` does under the lock. It leaves the lock.
    source.completion.pointee.failure = failure
    source.publish(Completion.failed)
    hasLeft.wait()
    withExtendedLifetime((source, other)) {}
  }

  /// The copy is settled as of no use, and still in memory, while the last dependent's `onCancel` runs.
  @Test func `is reported by its job once`() async throws {
    let errors = UnhandledErrors()
    let queue = taggedQueue("job")
    try await onOwnThread { [failure = errors.failure("unseen")] in
      let (gate, isTold) = (Gate(), DispatchSemaphore(value: 0))
      let job = Self.job(on: queue, gate, failure)
      let (last, resolver) = Promise<Int>.pending(onCancel: {
        gate.open()
        isTold.wait()
      })
      last.follow(job.uncancelled.uncancelled)
      // Called after the copy, because it was added later.
      _ = job.completion.add(ClosureCallback { isTold.signal() }, observes: .no)
      last.cancel()
      withExtendedLifetime(resolver) {}
    }
    // The queue has given the job up.
    try await onBlock(of: queue) {}
    // A dump of everything, in a test beside this one, may hold the job for a moment more.
    _ = try await errors.jobs(count: 1)
    #expect(try await errors.settledLabels() == ["unseen"])
  }

  @Test(arguments: [true, false])
  func `is reported by its job if the copy was settled before`(_ isCancelled: Bool) async throws {
    let errors = UnhandledErrors()
    let queue = taggedQueue("job")
    try await onOwnThread { [failure = errors.failure("unseen")] in
      let (gate, isTold) = (Gate(), DispatchSemaphore(value: 0))
      let job = Self.job(on: queue, gate, failure)
      let copy = job.uncancelled
      if isCancelled { copy.cancel() } else { copy.fulfill(1) }
      _ = job.completion.add(ClosureCallback { isTold.signal() }, observes: .no)
      gate.open()
      isTold.wait()
      withExtendedLifetime(copy) {}
    }
    try await onBlock(of: queue) {}
    // As above.
    _ = try await errors.jobs(count: 1)
    #expect(try await errors.settledLabels() == ["unseen"])
  }

  private static func job(on queue: DispatchQueue, _ gate: Gate, _ failure: any Error) -> Job<Int> {
    co_launch(on: queue) {
      try gate.pass()
      throw failure
    }
  }
}
