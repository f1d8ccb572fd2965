import Coroutine

/// Counts arrivals from any thread, and lets tests wait for a count.
final class Arrivals: Sendable {
  private let state = Locked<(count: Int, gates: [(count: Int, gate: Gate)])>((0, []))

  var count: Int { state.withLock { $0.count } }

  func arrive() {
    let open = state.withLock { state in
      state.count += 1
      let open = state.gates.filter { $0.count <= state.count }.map(\.gate)
      state.gates.removeAll { $0.count <= state.count }
      return open
    }
    for gate in open { gate.open() }
  }

  /// Suspends until at least `count` have arrived since the beginning.
  func wait(for count: Int) async throws {
    let gate = Gate()
    let isThere = state.withLock { state in
      if state.count < count { state.gates.append((count, gate)) }
      return state.count >= count
    }
    if !isThere { try await onCoroutine { try gate.pass() } }
  }
}
