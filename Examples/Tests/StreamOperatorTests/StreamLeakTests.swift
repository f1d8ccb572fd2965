import AsyncAlgorithms
import CoroutineTesting
import Testing

/// Two leaks in swift-async-algorithms 1.1.4, which worlds of async code find in their first run.
///
/// A later version may have mended them; then what is expected here changes.
@Suite("Leaks that a world finds", .timeLimit(.minutes(1)))
struct StreamLeakTests {
  /// DebounceStateMachine.cancelled(), in its case `.waitingForDemand`, drops the Task and both continuations.
  @Test func `a debounce that is cancelled in the body of its loop leaves Tasks behind`() {
    let found = explore(.random()) { () async throws in
      let (values, source) = AsyncStream<Int>.makeStream()
      let consumer = Task {
        for await _ in values.debounce(for: .milliseconds(10), clock: .continuous) {
          withUnsafeCurrentTask { $0?.cancel() }
        }
      }
      source.yield(1)
      try await Task.sleep(for: .milliseconds(50))
      source.yield(2)
      source.finish()
      await consumer.value
    }
    check(found, "DebounceStorage.startTask")
  }

  @Test func `a bounded buffer that is left early leaves a Task behind`() {
    let found = explore(.random()) { () async throws in
      let (values, source) = AsyncStream<Int>.makeStream()
      for value in 0..<8 { source.yield(value) }
      let consumer = Task {
        for await _ in values.buffer(policy: .bounded(2)) { break }
      }
      await consumer.value
      source.finish()
    }
    check(found, "BoundedBufferStorage.startTask")
  }

  private func check(_ found: Exploration, _ function: String) {
    let text = found.failure.map { "\($0)" } ?? "no failure"
    #expect(found.runs == 1 && text.contains("left Tasks behind") && text.contains(function), "\(text)")
  }
}
