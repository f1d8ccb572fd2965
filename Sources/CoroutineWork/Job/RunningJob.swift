#if Postgres
import Coroutine
import CoroutinePostgres

// A claim that this program holds, or has held.
//
// States:   held ──the handler's finish begins──▶ finishing ──▶ completed, held, or unknown if its COMMIT was lost
//           held ──snooze, discard, report──▶ ended or completed      held ──lease lost──▶ lost
// `completed`, `ended` and `lost` are final; the first of them wins, under the lock. While a finish runs, an
// extension may miss the row because the finish has committed. So it is then not taken for a loss: the finish itself
// finds out.

final class RunningJob: Sendable {
  enum Phase { case held, finishing, unknown, completed, ended, lost }
  private struct State {
    var phase = Phase.held
    var until: ContinuousClock.Instant
    var coroutine: AnyJob?
  }
  let id: Int64
  let fence: Int64
  private let state: ThreadMutex<State>

  /// - Parameter until: A time before the end of the lease, by this program's steady clock.
  init(_ id: Int64, fence: Int64, until: ContinuousClock.Instant) {
    self.id = id
    self.fence = fence
    state = ThreadMutex(State(until: until))
  }

  var phase: Phase { state.withLock { $0.phase } }
  var until: ContinuousClock.Instant { state.withLock { $0.until } }
  func extend(until end: ContinuousClock.Instant) { state.withLock { $0.until = end } }

  /// Says which coroutine a loss is to cancel.
  func runs(in coroutine: AnyJob) {
    let isLost = state.withLock { state in
      state.coroutine = coroutine
      return state.phase == .lost
    }
    if isLost { coroutine.cancel(Self.loss(id)) }
  }

  /// Lets the coroutine go, which refers to this object.
  func end() { state.withLock { $0.coroutine = nil } }

  /// Moves on; false if the phase is final.
  @discardableResult
  func move(to next: Phase) -> Bool {
    state.withLock { state in
      guard ![.lost, .ended, .completed].contains(state.phase) else { return false }
      state.phase = next
      return true
    }
  }

  /// Cancels the handler, unless the job has ended or is being finished; returns whether it did.
  func lose() -> Bool {
    let (isMine, coroutine) = state.withLock { state -> (Bool, AnyJob?) in
      guard state.phase == .held else { return (false, nil) }
      state.phase = .lost
      return (true, state.coroutine)
    }
    coroutine?.cancel(Self.loss(id))
    return isMine
  }

  static func loss(_ id: Int64) -> PostgresError {
    PostgresError(.leaseLost, "job \(id) belongs to another worker by now, or may do so")
  }
}

/// Thrown by `snooze` and `discard`: the attempt has ended already.
struct AttemptEnded: Error {}

/// Why a handler has given a job up.
struct JobGivenUp: Error, CustomStringConvertible {
  var description: String
}
#endif
