import Harness
import Synchronization

/// A million tasks that wait.
///
/// Stackless, so the figure is what one suspended frame costs, not what a stack does.
func addParked(to suite: inout Suite) {
  suite.figures(
    [Figure("parked_1M_bytes", unit: "bytes", owner: "swift"), Figure("parked_1M_start", owner: "swift")],
    1_000_000,
    quick: 100_000,
    fresh: true
  ) { count in
    try inTask {
      let gate = Gate()
      let before = Memory.current.resident
      let start = Clock.wall.now
      for _ in 0..<count {
        Task.detached {
          await withUnsafeContinuation { continuation in gate.parked.withLock { $0.append(continuation) } }
          gate.resumed.add(1, ordering: .relaxed)
        }
      }
      while gate.parked.withLock({ $0.count }) < count { try await Task.sleep(for: .milliseconds(1)) }
      let figures = [
        Double(Memory.current.resident - before) / Double(count), Double(Clock.wall.now - start) / Double(count),
      ]
      for continuation in gate.parked.withLock({ $0 }) { continuation.resume() }
      while gate.resumed.load(ordering: .relaxed) < count { try await Task.sleep(for: .milliseconds(1)) }
      return figures
    }
  }
}

private final class Gate: Sendable {
  let parked = Mutex<[UnsafeContinuation<Void, Never>]>([])
  let resumed = Atomic<Int>(0)
}
