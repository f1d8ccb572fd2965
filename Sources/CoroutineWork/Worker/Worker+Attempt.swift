#if Postgres
import Coroutine
import CoroutinePostgres
import FoundationEssentials

// One attempt: the handler, and the report of its end.
//
// | the handler | the report |
// |---|---|
// | has finished, snoozed or discarded | none: the row has changed already |
// | returns without that | completed, with no effects |
// | throws | failed; discarded if no attempt is left |
// | ends because the worker is cancelled | given back, and the attempt does not count |
// | ends because the lease is lost | none: the row belongs to somebody else |
// | has lost its COMMIT, and the row could not be read | the row is read now: completed, or failed |

extension Worker {
  /// Runs the handler, and reports how it has ended.
  ///
  /// Suspends; throws nothing.
  func attempt(_ claimed: JobTable.Claimed, _ running: RunningJob) {
    let begun = ContinuousClock.now
    onEvent(.started(claimed.id, attempt: claimed.attempt))
    switch decoded(claimed.payload, of: claimed.id) as Result<Payload, WorkError> {
    case .failure(let error): discard(running, error)
    case .success(let payload):
      let onEvent = onEvent
      let job = WorkJob(claimed, payload: payload, core: core, running: running) {
        onEvent(.discarded(claimed.id, $0))
      }
      do {
        try co_timeout(core.options.timeout) { try handle(job) }
        end(claimed, running, nil)
      } catch {
        end(claimed, running, error)
      }
    }
    if running.phase == .completed { onEvent(.finished(claimed.id, ContinuousClock.now - begun)) }
    // The next job of the key may run now; this worker has room for it.
    if claimed.key != nil { _ = bell.trySend(()) }
  }

  private func end(_ claimed: JobTable.Claimed, _ running: RunningJob, _ error: (any Error)?) {
    switch running.phase {
    case .completed, .ended, .lost: return
    case .unknown: resolve(claimed, running)
    case .held, .finishing:
      guard let error else { return complete(running) }
      if let refused = error as? PostgresError, refused.kind == .leaseLost {
        lost(running)
      } else if isCancelled {
        report(running) { _ = try core.table.release(running.id, fence: running.fence, core.db) }
        running.move(to: .ended)
        core.wake()
      } else {
        fail(claimed, running, error)
      }
    }
  }

  private func complete(_ running: RunningJob) {
    let isDeleted = core.options.keepCompleted <= .zero
    let done = report(running) {
      try core.table.complete(running.id, fence: running.fence, isDeleted: isDeleted, core.db)
        // The answer of an earlier try may have been lost.
        || core.outcome(running, isDeleted: isDeleted) == .committed
    }
    if done == true { running.move(to: .completed) } else if done == false { lost(running) }
  }

  private func fail(_ claimed: JobTable.Claimed, _ running: RunningJob, _ error: any Error) {
    let delay = core.options.backoff(claimed.attempt)
    let state = report(running) {
      try core.table.fail(running.id, fence: running.fence, delay: delay, error: errorText(error), core.db)
    }
    running.move(to: .ended)
    onEvent(.failed(claimed.id, attempt: claimed.attempt, error))
    switch state {
    case "discarded":
      onEvent(.discarded(claimed.id, error))
      // For those that wait for its answer.
      core.wake()
    case "retryable": _ = dueBell.trySend(())
    default: core.wake()
    }
  }

  private func discard(_ running: RunningJob, _ error: any Error) {
    let text = errorText(error)
    _ = report(running) { try core.table.discard(running.id, fence: running.fence, error: text, core.db) }
    running.move(to: .ended)
    onEvent(.discarded(running.id, error))
    core.wake()
  }

  /// The COMMIT of a finish was lost, and its outcome was not known to the handler.
  private func resolve(_ claimed: JobTable.Claimed, _ running: RunningJob) {
    switch report(running, { try core.outcome(running, isDeleted: core.options.keepCompleted <= .zero) }) {
    case .committed: running.move(to: .completed)
    case .notCommitted:
      fail(claimed, running, PostgresError(.lost, "the connection was lost during COMMIT; nothing was committed"))
    case .lost, .gone, nil: lost(running)
    }
  }

  private func lost(_ running: RunningJob) {
    if running.move(to: .lost) { onEvent(.leaseLost(running.id)) }
  }

  /// Runs `body` until it returns; nil once the job is lost, or 5 s after the worker's cancellation.
  ///
  /// Not cut off by a cancellation: what is not reported runs again when its lease has ended. Asks the server.
  @discardableResult
  func report<R>(_ running: RunningJob, _ body: () throws -> R) -> R? {
    var pause = Duration.milliseconds(50)
    var end: ContinuousClock.Instant?
    while running.phase != .lost {
      if isCancelled {
        end = end ?? ContinuousClock.now + .seconds(5)
        if ContinuousClock.now > end! { return nil }
      }
      do {
        let result = try co_shield { try co_timeout(.seconds(5), body) }
        link.tell(nil)
        return result
      } catch {
        link.tell(error)
        co_shield { _ = try? co_delay(pause) }
        pause = min(pause * 2, .seconds(2))
      }
    }
    return nil
  }

  private var isCancelled: Bool {
    do { try co_checkCancelled() } catch { return true }
    return false
  }
}
#endif
