import CTestSupport
import Glibc
import Testing

@testable import Coroutine

/// The tools in a forked child, and without memory.
@Suite("The tools under bad conditions", .timeLimit(.minutes(10)))
struct BadConditionsTests {
  /// What an operator can ask for; true if each answer has its form.
  private static func asksEverything() -> Bool {
    let snapshot = CoroutineRuntime.snapshot(stacks: true)
    var json = 0
    CoroutineRuntime.snapshotJSON(stacks: true) { json += $0.count }
    let texts = [CoroutineRuntime.dump(.list), CoroutineRuntime.dump(.stacks), CoroutineRuntime.metricsText]
    let isComplete = texts[0].contains("live coroutine") && texts[1].contains("live coroutine")
    CoroutineRuntime.startRecording(bytesPerWorker: 1 << 24)
    let recording = CoroutineRuntime.recording()
    CoroutineRuntime.stopRecording()
    return isComplete && texts[2].contains("coroutine_live") && snapshot.coroutines.count >= 20 && json > 100
      && CoroutineRuntime.deadlocks().isEmpty && !CoroutineRuntime.profile(.live).isEmpty && !recording.isEmpty
  }

  @Test(.enabled(if: !isSanitized)) func `a forked child sees its parent's coroutines, and waits for no thread of it`()
    async
  {
    await #expect(processExitsWith: .success) {
      let gate = Gate()
      for _ in 0..<20 { co_launch(name: "parked") { try gate.pass() } }
      settle(20)
      CoroutineRuntime.onDeadlock { _ in }
      CoroutineRuntime.onStall { _ in }
      CoroutineRuntime.startRecording(filesIn: "/nowhere")
      let code = cts_in_child(30, { _ in BadConditionsTests.asksEverything() ? 7 : 8 }, nil)
      #expect(code == 7)
    }
  }

  @Test(.enabled(if: !isSanitized)) func `a fatal signal of a forked child waits for no recorder of its parent`() async
  {
    await #expect(processExitsWith: .success) {
      try await co_launch {}.value
      CoroutineRuntime.startRecording(filesIn: "/nowhere")
      let start = Clock.now
      #expect(cts_in_child(30, { _ in abort() }, nil) == -SIGABRT)
      // It would wait for five seconds.
      #expect(Clock.now - start < 4_000_000_000)
    }
  }

  /// No mapping may be made any more: tables of symbols and rings are not there, and what fits into the memory that is
  /// left is answered.
  @Test(.enabled(if: !isSanitized)) func `without memory the answers are shorter, and the process lives`() async {
    await #expect(processExitsWith: .success) {
      let gate = Gate()
      for _ in 0..<20 { co_launch(name: "parked") { try gate.pass() } }
      settle(20)
      var kept = [UInt8](repeating: 1, count: 1 << 20)
      var limit = rlimit(rlim_cur: 1 << 20, rlim_max: .max)
      getrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limit)
      limit.rlim_cur = 1 << 20
      #expect(setrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limit) == 0)
      // The space of this array is used for what follows.
      kept = []
      let isComplete = BadConditionsTests.asksEverything()
      limit.rlim_cur = limit.rlim_max
      setrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limit)
      #expect(isComplete && kept.isEmpty)
    }
  }
}
