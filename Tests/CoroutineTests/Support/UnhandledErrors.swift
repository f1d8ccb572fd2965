import Coroutine
import CoroutineTesting

/// Receives the errors of the unhandled-error hook, separately for each test.
///
/// The hook belongs to the process, and tests run at the same time. So it is replaced once and permanently by a hook
/// that inspects the error: a `Failure` contains its listener, every other error goes to the previous hook. A test that
/// sets the hook itself belongs in a separate process (an exit test).
final class UnhandledErrors: Sendable {
  /// An error that only its own listener receives.
  struct Failure: Error {
    let listener: UnhandledErrors
    let label: String
  }

  private struct State {
    var heard: [(label: String, job: String)] = []
    var gates: [(count: Int, gate: Gate)] = []
  }

  private static let installed: Void = {
    let previous = CoroutineRuntime.unhandledErrorHandler
    CoroutineRuntime.unhandledErrorHandler = { unhandled in
      if let failure = unhandled.error as? Failure {
        failure.listener.hear(failure.label, unhandled.origin)
      } else {
        previous(unhandled)
      }
    }
  }()

  private let state = Locked(State())
  private let onFailure: @Sendable () -> Void

  /// `onFailure` is called by the hook, where it receives a failure.
  init(onFailure: @escaping @Sendable () -> Void = {}) {
    self.onFailure = onFailure
    Self.installed
    // In a world, they would fail the run.
    World.allowUnhandledErrors { $0.error is Failure }
  }

  func failure(_ label: String) -> Failure {
    Failure(listener: self, label: label)
  }

  /// The labels received so far.
  var labels: [String] { state.withLock { $0.heard.map(\.label) } }

  /// The jobs of the failures that were received so far.
  var jobs: [String] { state.withLock { $0.heard.map(\.job) } }

  /// Suspends until `count` failures were received; returns the jobs that the hook was given, in that order.
  func jobs(count: Int) async throws -> [String] {
    let gate = Gate()
    let isThere = state.withLock { state in
      if state.heard.count < count { state.gates.append((count, gate)) }
      return state.heard.count >= count
    }
    if !isThere { try await onCoroutine { try gate.pass() } }
    return state.withLock { $0.heard.map(\.job) }
  }

  /// The labels received up to now.
  ///
  /// It reports a last failure and waits for it, so that the hook has received all earlier ones.
  func settledLabels() async throws -> [String] {
    let last = Gate()
    let closing = UnhandledErrors()
    closing.state.withLock { $0.gates.append((1, last)) }
    let failure = closing.failure("last")
    co_launch { () throws -> Void in throw failure }
    try await onCoroutine { try last.pass() }
    return labels
  }

  private func hear(_ label: String, _ job: String) {
    let open = state.withLock { state in
      state.heard.append((label, job))
      let open = state.gates.filter { $0.count <= state.heard.count }.map(\.gate)
      state.gates.removeAll { $0.count <= state.heard.count }
      return open
    }
    for gate in open { gate.open() }
    onFailure()
  }
}
