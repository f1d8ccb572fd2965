import Dispatch
import Synchronization
import Testing

@testable import Coroutine

private actor Desk {
  /// Blocks the actor's thread until `release` is signalled.
  func occupy(_ isOccupied: DispatchSemaphore, _ release: DispatchSemaphore) {
    isOccupied.signal()
    release.wait()
  }
}

/// The hook for unhandled errors runs in the coroutine of the scope that reports.
///
/// The scope was signalled, and its frame is gone: that is no cancellation of what the hook does.
@Suite("The hook that a cancelled scope calls", .timeLimit(.minutes(10)))
struct ReportingScopeTests {
  /// The waits that do not end with a value if a cancellation is on its way.
  enum Wait: CaseIterable { case move, actorOnQueue, freeActor, busyActor }
  /// What fails after the first failure.
  enum Late: CaseIterable { case body, children }

  @Test(arguments: Wait.allCases, Late.allCases)
  func `may wait for another queue or an actor, and gets there`(_ wait: Wait, _ late: Late) async throws {
    let (away, desk) = (taggedQueue("away"), Desk())
    let ledger = Ledger(on: away)
    let seen = Trace()
    let errors = UnhandledErrors {
      seen(
        outcome {
          switch wait {
          case .move:
            try co_switch(to: away)
            return currentTag ?? ""
          case .actorOnQueue: return try co_isolated(ledger) { _ in currentTag ?? "" }
          case .freeActor, .busyActor: return try co_isolated(desk) { _ in "away" }
          }
        }
      )
    }
    let release = DispatchSemaphore(value: 0)
    if wait == .busyActor {
      let isOccupied = DispatchSemaphore(value: 0)
      // On a thread of Dispatch, because the cooperative pool has few.
      let executor = CoroutineExecutor(DispatchQueue(label: "coroutine.tests.occupier"))
      Task(executorPreference: executor) { await desk.occupy(isOccupied, release) }
      try await onOwnThread { isOccupied.wait() }
    }
    let owner = co_launch(on: taggedQueue("home")) { outcome { try Self.fail(late, errors) } }
    if wait == .busyActor {
      while owner.record.pointee.waitKind.load(ordering: .relaxed) != WaitKind.task.rawValue { await Task.yield() }
      release.signal()
    }
    #expect(try await owner.value == "Failure(first)")
    #expect(seen.all == ["away"])
    #expect(errors.labels == ["late"])
  }

  /// Opens a scope that throws the failure of one child, and reports a later one.
  private static func fail(_ late: Late, _ errors: UnhandledErrors) throws {
    try co_scope { scope in
      if late == .children { scope.launch { try failWhenCancelled(errors) } }
      scope.launch { throw errors.failure("first") }
      if late == .body { try failWhenCancelled(errors) }
    }
  }

  private static func failWhenCancelled(_ errors: UnhandledErrors) throws {
    do { try waitForCancellation() } catch { throw errors.failure("late") }
  }
}
