#if Postgres
import Coroutine
public import CoroutinePostgres

// Why effects are there once.
//  1. The transaction of a finish locks the row with this fence in the state `running`, and leaves that state.
//  2. While it holds the lock no claim and no rescue takes the row: they skip locked rows. So the fence cannot change
//     between the check and the COMMIT.
//  3. A second finish with the same fence, by another child of the handler, waits for the row at its own last
//     statement, finds it completed, and is rolled back with its effects.
//  4. If the COMMIT's answer is lost, the row is read with a lock that waits for the lost transaction. Completed with
//     this fence: it has committed. Running with this fence: it has not, and never will.

extension WorkJob {
  /// Completes the job and commits `effects`, in one transaction.
  ///
  /// Asks the server.
  ///
  /// First it locks the job's row, and checks the fence. So if this returns, the effects are there once, and no other
  /// attempt's are. The body may run again after a serialization failure, 3 times.
  /// - Throws: `.leaseLost`, before `effects` runs, if the job is no longer this worker's; what `effects` throws.
  ///   After a loss during COMMIT the job's row tells the outcome; while it cannot be read, `.commitUnknown`: return
  ///   then.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func finish<R>(_ effects: (PostgresTransaction) throws -> R) throws -> R {
    guard running.move(to: .finishing) else { throw RunningJob.loss(id) }
    let isDeleted = core.options.keepCompleted <= .zero
    var value: R?
    do {
      let done = try core.db.transaction(retries: 3) { t in
        guard try core.table.lock(id, fence: fence, t) else { throw RunningJob.loss(id) }
        let done = try effects(t)
        guard try core.table.complete(id, fence: fence, isDeleted: isDeleted, t) else {
          throw RunningJob.loss(id)
        }
        value = done
        return done
      }
      running.move(to: .completed)
      return done
    } catch let error as PostgresError where error.kind == .commitUnknown {
      switch try? core.outcome(running, isDeleted: isDeleted) {
      case .committed:
        running.move(to: .completed)
        if let value { return value }
        throw error
      case .notCommitted:
        running.move(to: .held)
        throw PostgresError(.lost, "the connection was lost, and nothing was committed: \(error.message)")
      case .lost, .gone:
        running.move(to: .held)
        throw RunningJob.loss(id)
      case nil:
        // The worker finds out when the handler has returned.
        running.move(to: .unknown)
        throw error
      }
    } catch {
      running.move(to: .held)
      throw error
    }
  }
}

extension QueueCore {
  /// What has become of a finish whose COMMIT was lost.
  ///
  /// Asks the server.
  func outcome(_ job: RunningJob, isDeleted: Bool) throws -> JobTable.Outcome {
    let found = try db.transaction(retries: 3) { t in try table.outcome(job.id, fence: job.fence, t) }
    // Only the holder deletes it; and before the end of the lease, that is this worker.
    return found == .gone && isDeleted && ContinuousClock.now < job.until ? .committed : found
  }
}
#endif
