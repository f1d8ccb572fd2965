#if Postgres
import Coroutine
import CoroutinePostgres

// Askers that wait for answers: one statement for all of them.
//
// Invariants
//  1. Each asker has a promise in `waiting`, from before it waits until it has been answered or has left.
//  2. `isLooking` exactly while a coroutine looks for answers. It ends only when `waiting` is empty, and clears the
//     flag under the same lock: an asker that comes later starts the next one.
//  3. After its bell it looks again, so an answer that was committed before the bell is found. Polling finds the
//     rest.

final class Answers: Sendable {
  struct Answer: Sendable {
    var state: String, result: String?, error: String, attempt: Int
  }
  private struct State {
    var waiting: [Int64: [UInt64: Promise<Answer>]] = [:]
    var nextNumber: UInt64 = 0
    var isLooking = false
  }
  private let core: QueueCore
  private let state = ThreadMutex(State())

  init(_ core: QueueCore) { self.core = core }

  /// The end of the job with this number.
  ///
  /// Suspends; if cancelled, throws at once.
  func wait(for id: Int64) throws -> Answer {
    let promise = Promise<Answer>()
    let (number, starts) = state.withLock { state in
      let number = state.nextNumber
      state.nextNumber += 1
      state.waiting[id, default: [:]][number] = promise
      defer { state.isLooking = true }
      return (number, !state.isLooking)
    }
    defer { leave(id, number) }
    if starts { co_launch(name: "answers of \(core.queue)") { [self] in try look() } }
    return try co_await(promise)
  }

  private func leave(_ id: Int64, _ number: UInt64) {
    state.withLock { state in
      state.waiting[id]?[number] = nil
      if state.waiting[id]?.isEmpty == true { state.waiting[id] = nil }
    }
  }

  /// Looks for answers while somebody waits.
  ///
  /// Suspends.
  private func look() throws {
    let bell = core.wakeUps.addBell()
    defer { core.wakeUps.remove(bell) }
    let listening = co_launch(name: "wake-ups of \(core.queue)") { [core] in
      guard core.options.usesNotifications else { return }
      // Without a listener answers are only late.
      guard let notes = try? core.db.listen(core.wakeUps.channel) else { return }
      defer { notes.stop() }
      while let note = try? notes.receive() {
        _ = note
        _ = bell.trySend(())
      }
    }
    defer { listening.cancel() }
    while let ids = asked() {
      // Repeated below, as long as anybody waits.
      if let found = try? co_timeout(.seconds(10), { try answers(ids) }) {
        for (id, answer) in found { answered(id, answer) }
      }
      try co_select {
        bell.onReceive { _ in }
        SelectCase.onTimeout(core.options.poll) {}
      }
    }
  }

  private func asked() -> [Int64]? {
    state.withLock { state in
      if state.waiting.isEmpty { state.isLooking = false }
      return state.waiting.isEmpty ? nil : Array(state.waiting.keys)
    }
  }

  private func answered(_ id: Int64, _ answer: Answer) {
    let promises = state.withLock { state in Array((state.waiting[id] ?? [:]).values) }
    for promise in promises { promise.fulfill(answer) }
  }

  private func answers(_ ids: [Int64]) throws -> [(Int64, Answer)] {
    let found = try core.db.all(
      """
      select i.id, coalesce(j.state, 'discarded'), j.result::text,
        coalesce(j.errors[cardinality(j.errors)],
          case j.state when 'cancelled' then 'cancelled' else 'the answer is no longer stored' end),
        coalesce(j.attempt, 0)
      from unnest(\(ids)) as i (id) left join \(core.table.job) j on j.id = i.id
      where j.id is null or j.state in ('completed', 'discarded', 'cancelled')
      """,
      as: (Int64, String, String?, String, Int).self
    )
    return found.map { ($0, Answer(state: $1, result: $2, error: $3, attempt: $4)) }
  }
}
#endif
