#if Postgres
import Coroutine
import CoroutinePostgres

// How attempts end, but for those that `finish` ends in its own transaction.
//
// All ends of a program go through one coroutine, which sends those that have come meanwhile by one statement. So an
// end costs no transaction of its own when there are many, and it waits for nobody's statements but the last batch.
//
// A row that another transaction has locked, as that of an operator, is passed over, and its end sent again, for up to
// 4 s: the other ends do not wait for it, and neither does what else needs the connections of the reserve.
//
// Invariants of `JobEnds`
//  1. While `pending` has entries, `isSending`: a coroutine will send them. It is started by who adds the first one,
//     and leaves under the lock, having found none.
//  2. Each promise is settled once, by that coroutine: it takes an entry out of `pending`, and settles it whatever the
//     server says, or adds it again a moment later.

/// The end of an attempt, as the worker reports it.
struct JobEnd: Sendable {
  enum Kind: String, Sendable {
    case complete, delete, fail, discard, snooze, release
  }
  let id: Int64
  let fence: Int64
  let kind: Kind
  /// How long the job waits for its next attempt.
  var wait = Duration.zero
  /// Kept with the job, of a failure.
  var error = ""
}

extension JobTable {
  /// Ends attempts, and returns the states that follow for those that were still held.
  ///
  /// Asks the server.
  ///
  /// With `passesOver`, a row that others have locked is left as it is, and its state is `locked`. Without, it waits
  /// for such a row; others that lock several pass over locked ones, so there is no circle. An id that comes twice has
  /// the same fence, and one of the two ends counts.
  func end(
    _ ends: [JobEnd],
    passesOver: Bool = false,
    _ session: some PostgresSession
  ) throws -> [Int64: String] {
    if let memory { return try memory.end(ends, session) }
    // A deletion waits for every lock.
    let strength: SQL = ends.contains { $0.kind == .delete } ? "update" : "no key update"
    let wait: SQL = passesOver ? "skip locked" : ""
    let isLast: SQL = "(r.what = 'fail' and j.attempt >= j.attempts)"
    let found = try session.all(
      """
      with report as (
        select * from unnest(\(ends.map(\.id)), \(ends.map(\.fence)), \(ends.map(\.kind.rawValue)),
          \(ends.map(\.wait.milliseconds)), \(ends.map(\.error))) as r (id, fence, what, wait, error)),
      held as (
        select r.* from report r join \(job) j on j.id = r.id and j.fence = r.fence and j.state = 'running'
        for \(strength) of j \(wait)),
      gone as (
        delete from \(job) j using held r where r.what = 'delete' and j.id = r.id
        returning j.id, 'completed'::text as state, j.queue, j.order_key),
      ended as (
        update \(job) j set
          state = case when r.what = 'complete' then 'completed' when r.what = 'discard' then 'discarded'
            when j.cancel_asked then 'cancelled' when \(isLast) then 'discarded'
            when r.wait > 0 then case when r.what = 'fail' then 'retryable' else 'scheduled' end
            else 'available' end,
          attempt = j.attempt - case when r.what in ('snooze', 'release') then 1 else 0 end,
          at = case when r.what in ('fail', 'snooze') and not j.cancel_asked and not \(isLast)
            then now() + r.wait * interval '1 ms' else j.at end,
          ended_at = case when r.what in ('complete', 'discard') or j.cancel_asked or \(isLast) then now() end,
          lease_ends = null,
          errors = case when r.what in ('fail', 'discard') or r.error <> ''
            then (array_append(j.errors, r.error))[greatest(1, cardinality(j.errors) - 8):] else j.errors end
        from held r where r.what <> 'delete' and j.id = r.id
        returning j.id, j.state, j.queue, j.order_key),
      freed as (
        \(freeing("(select * from gone union all select * from ended where state in \(Self.final))")))
      select id, state from gone union all select id, state from ended
      union all select j.id, 'locked' from report r join \(job) j on j.id = r.id and j.fence = r.fence
        where j.state = 'running' and not exists (select from held h where h.id = j.id)
      """,
      as: (Int64, String).self
    )
    return Dictionary(found) { first, _ in first }
  }

  static let final = SQL("('completed', 'discarded', 'cancelled')")
  /// How many unfinished jobs of a key are without the mark: so many may end before one is free again in time.
  static let ahead = SQL("8")

  /// Takes the mark from the next jobs of keys of which a job has ended; `ended` has `id`, `queue` and `order_key`.
  ///
  /// Not from one that others have locked: `Upkeep.free` finds it later.
  func freeing(_ ended: SQL) -> SQL {
    """
    update \(job) w set waits = false where w.id in (
      select w.id from \(job) w where w.waits and w.id in (
        select n.id from \(ended) e cross join lateral (\(next(of: "e.order_key", in: "e.queue", "\(Self.ahead) + 1"))) n
        where n.id <> e.id)
      for no key update skip locked)
    """
  }
}

/// Sends the ends of a program's attempts.
final class JobEnds: Sendable {
  private struct Entry: Sendable {
    let end: JobEnd
    let answer = Promise<String?>()
    /// How long it is sent again while its row is locked.
    let until = ContinuousClock.Instant.steady + .seconds(4)
  }
  private struct State {
    var pending: [Entry] = []
    var isSending = false
  }
  private let state = ThreadMutex(State())
  private let table: JobTable
  private let db: PostgresPool
  private let size = BatchSize(256)

  init(_ db: PostgresPool, schema: String) {
    self.db = db
    table = JobTable(queue: "", schema: schema, memory: db.link)
  }

  /// Sends an end; the promise gets the state that follows, or nil if the job was not held any more.
  ///
  /// Never suspends; any thread.
  func send(_ end: JobEnd) -> Promise<String?> {
    let entry = Entry(end: end)
    add(entry)
    return entry.answer
  }

  private func add(_ entry: Entry) {
    let isFirst = state.withLock { state in
      state.pending.append(entry)
      defer { state.isSending = true }
      return !state.isSending
    }
    // Begins at once: one that was cancelled before its begin would send nothing for ever.
    if isFirst { co_launch(name: "ends of jobs", start: .immediate) { [self] in sendAll() } }
  }

  private func addLater(_ entry: Entry) {
    co_launch(name: "end of a locked job", start: .immediate) { [self] in
      // The delay fails only if the whole program is being cancelled.
      try? co_delay(.milliseconds(50))
      add(entry)
    }
  }

  private func sendAll() {
    while let batch = next() {
      do {
        let states = try co_shield {
          try size.running { _ in
            try co_timeout(.seconds(4)) { try table.end(batch.map(\.end), passesOver: true, db.reserve) }
          }
        }
        for entry in batch {
          let state = states[entry.end.id]
          if state != "locked" {
            entry.answer.fulfill(state)
          } else if ContinuousClock.Instant.steady < entry.until {
            addLater(entry)
          } else {
            let rule = "another transaction has locked the row of job \(entry.end.id) for 4 s"
            entry.answer.reject(PostgresError(.server, rule, sqlState: .lockNotAvailable))
          }
        }
      } catch {
        let error = error is TimeoutError ? PostgresError(.lost, "the server has not answered within 4 s") : error
        for entry in batch { entry.answer.reject(error) }
      }
    }
  }

  private func next() -> [Entry]? {
    let most = size.count
    return state.withLock { state in
      guard !state.pending.isEmpty else {
        state.isSending = false
        return nil
      }
      let batch = Array(state.pending.prefix(most))
      state.pending.removeFirst(batch.count)
      return batch
    }
  }
}

/// How many rows a statement with a deadline takes: half as many after it has failed, until it fits.
///
/// Otherwise a batch that takes longer than its deadline would be tried for ever.
final class BatchSize: Sendable {
  private let most: Int
  private let current: ThreadMutex<Int>

  init(_ most: Int) {
    self.most = most
    current = ThreadMutex(most)
  }

  var count: Int { current.withLock { $0 } }

  /// Runs `body` with the number, and learns from its end.
  func running<R>(_ body: (Int) throws -> R) throws -> R {
    let count = self.count
    do {
      let result = try body(count)
      current.withLock { $0 = min(most, max($0, count) * 2) }
      return result
    } catch {
      current.withLock { $0 = max(1, count / 2) }
      throw error
    }
  }
}
#endif
