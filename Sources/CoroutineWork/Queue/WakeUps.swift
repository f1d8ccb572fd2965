#if Postgres
import Coroutine
import CoroutinePostgres

// Wake-ups of idle workers.
//
// A commit that notifies takes a lock of the whole server over its fsync, so notifications are sent afterwards, at
// most each 50 ms for a program and queue. A wake-up is a hint: if it is lost, polling finds the job.
//
// Invariants
//  1. After `ring`, each bell that is there has an element, so its owner looks again after this moment.
//  2. If `isPending`, a coroutine will send a notification later than this moment. It clears the flag before it
//     sends. So a commit is followed by a notification that is sent after it, unless the program ends or the server
//     is lost.

/// The bells of one queue in this program, and its notifications.
final class WakeUps: Sendable {
  typealias Bell = Channel<Void>

  private struct State {
    /// In the order of coming: one for each worker of the queue.
    var bells: [Bell] = []
    var isPending = false
    var lastSent: ContinuousClock.Instant?
  }
  private let state = ThreadMutex(State())
  let channel: String

  /// One object for each database and queue in the program: the limit is the program's.
  static func shared(_ db: PostgresPool, schema: String, queue: String) -> WakeUps {
    known.value(for: SharedKey(db: ObjectIdentifier(db), schema: schema, queue: queue)) {
      WakeUps(channel: "work:\(queue)")
    }
  }

  private init(channel: String) { self.channel = channel }

  /// Adds a bell, which has at most one element.
  func addBell() -> Bell {
    let bell = Bell(.dropOldest(1))
    state.withLock { $0.bells.append(bell) }
    return bell
  }
  func remove(_ bell: Bell) { state.withLock { $0.bells.removeAll { $0 === bell } } }

  /// Wakes the waiters of this program.
  ///
  /// Never suspends.
  func ring() {
    for bell in state.withLock({ $0.bells }) { _ = bell.trySend(()) }
  }

  /// Wakes the waiters of all programs, after a commit.
  ///
  /// Never suspends; the notification is sent by another coroutine.
  func notify(_ db: PostgresPool, isSent: Bool) {
    ring()
    guard isSent, db.memory == nil else { return }
    let interval = Duration.milliseconds(50)
    let now = ContinuousClock.Instant.steady
    let wait: Duration? = state.withLock { state in
      guard !state.isPending else { return nil }
      state.isPending = true
      guard let last = state.lastSent else { return .zero }
      return max(.zero, interval - (now - last))
    }
    guard let wait else { return }
    co_launch(name: "notify \(channel)") { [self] in
      // The delay fails only if the whole program is being cancelled; then the last notification is sent at once.
      if wait > .zero { try? co_delay(wait) }
      state.withLock {
        $0.isPending = false
        $0.lastSent = ContinuousClock.Instant.steady
      }
      _ = try? co_timeout(.seconds(5)) { try db.reserve.run("select pg_notify(\(channel), '')") }
    }
  }

  private static let known = SharedObjects<WakeUps>()
}
#endif
