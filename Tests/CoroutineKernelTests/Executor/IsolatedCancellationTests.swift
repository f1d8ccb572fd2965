import Dispatch
import Testing

@testable import Coroutine

/// An executor of another library: its jobs run as blocks of a queue.
private final class BlockExecutor: SerialExecutor {
  private let queue = DispatchQueue(label: "coroutine.tests.blocks")

  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    queue.async { job.runSynchronously(on: self.asUnownedSerialExecutor()) }
  }
}

/// An actor that no coroutine reaches without a Task.
private actor Foreign {
  private let executor = BlockExecutor()
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
}

@Suite("The cancellation of co_isolated", .timeLimit(.minutes(5)))
struct IsolatedCancellationTests {
  @Test(arguments: [true, false])
  func `on the way to the actor's queue the call throws on its own queue, and the body does not run`(
    isReentrant: Bool
  ) async throws {
    let (home, away) = (taggedQueue("home"), taggedQueue("away"))
    let ledger = Ledger(on: away)
    let (isHeld, release) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
    away.async {
      isHeld.signal()
      release.wait()
    }
    try await onOwnThread { isHeld.wait() }
    let (called, ran) = (Flag(), Flag())
    let job = co_launch(on: home) {
      called.raise()
      let seen = outcome { try co_isolated(ledger, reentrant: isReentrant) { _ in ran.raise() } }
      return "\(seen) \(currentTag ?? "nowhere")"
    }
    // The queue runs a block when the coroutine has left it.
    while !called.isRaised { try await onBlock(of: home) {} }
    try await onBlock(of: home) {}
    job.cancel()
    release.signal()
    #expect(try await job.value == "CancellationError home")
    #expect(!ran.isRaised)
  }

  @Test func `an actor with another executor is left only after the end of the body`() async throws {
    let home = taggedQueue("home")
    let foreign = Foreign()
    let (isInside, release) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
    let (bodyHasEnded, callHasEnded) = (Flag(), Flag())
    let job = co_launch(on: home) {
      let seen = outcome {
        try co_isolated(foreign) { _ in
          isInside.signal()
          release.wait()
          bodyHasEnded.raise()
          return 7
        }
      }
      let isAfterBody = bodyHasEnded.isRaised
      callHasEnded.raise()
      return "\(seen) \(isAfterBody) \(currentTag ?? "nowhere")"
    }
    try await onOwnThread { isInside.wait() }
    job.cancel()
    // The cancellation reaches the coroutine before this one runs, and the coroutine does not leave.
    try await onCoroutine(on: home) { try co_yield() }
    #expect(!callHasEnded.isRaised)
    release.signal()
    #expect(try await job.value == "7 true home")
  }
}
