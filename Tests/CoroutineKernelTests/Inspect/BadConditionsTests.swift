import CTestSupport
import Foundation
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
      settle(20, stacks: false)
      CoroutineRuntime.onDeadlock { _ in }
      CoroutineRuntime.onStall { _ in }
      CoroutineRuntime.startRecording(filesIn: "/nowhere")
      // A thread that has just begun may hold a lock of Swift's runtime.
      while !cts_may_fork() { sched_yield() }
      let code = cts_in_child(300, { _ in BadConditionsTests.asksEverything() ? 7 : 8 }, nil)
      #expect(code == 7, "\(code)")
    }
  }

  @Test(.enabled(if: !isSanitized)) func `a forked child inherits no trace, and can stop the recorder`() async {
    await #expect(processExitsWith: .success) {
      CoroutineRuntime.beginTrace()
      while !cts_may_fork() { sched_yield() }
      let code = cts_in_child(
        300,
        { _ in
          CoroutineRuntime.stopRecording()
          return CoroutineRuntime.isRecording ? 8 : 7
        },
        nil
      )
      #expect(code == 7 && CoroutineRuntime.isRecording)
      CoroutineRuntime.endTrace()
      #expect(!CoroutineRuntime.isRecording)
    }
  }

  @Test(.enabled(if: !isSanitized)) func `a fatal signal of a forked child waits for no recorder of its parent`() async
  {
    await #expect(processExitsWith: .success) {
      try await co_launch {}.value
      CoroutineRuntime.startRecording(filesIn: "/nowhere")
      while !cts_may_fork() { sched_yield() }
      // Each would wait for five seconds. One of many is enough: the machine may stop for as long.
      var isQuick = false
      for _ in 0..<20 where !isQuick {
        let start = Clock.now
        #expect(cts_in_child(300, { _ in abort() }, nil) == -SIGABRT)
        isQuick = Clock.now - start < 4_000_000_000
      }
      #expect(isQuick)
    }
  }

  /// Makes standard error a pipe that nothing reads, and that is full or has lost its reader.
  private static func breakStandardError(isFull: Bool) {
    setenv("SWIFT_BACKTRACE", "enable=no", 1)
    var ends: [Int32] = [-1, -1]
    guard pipe(&ends) == 0 else { exit(1) }
    if isFull {
      _ = fcntl(ends[1], F_SETFL, O_NONBLOCK)
      while write(ends[1], [UInt8](repeating: 10, count: 4_096), 4_096) > 0 {}
      _ = fcntl(ends[1], F_SETFL, 0)
    } else {
      close(ends[0])
    }
    dup2(ends[1], STDERR_FILENO)
  }

  @Test(.enabled(if: !isSanitized), arguments: [true, false])
  func `a crash ends the process by its own signal, also if nothing reads standard error`(isFull: Bool) async {
    await #expect(processExitsWith: .signal(SIGABRT)) { [isFull] in
      alarm(300)
      BadConditionsTests.breakStandardError(isFull: isFull)
      _ = try await co_launch(name: "gives up") { () -> Int in abort() }.value
    }
  }

  @Test(.enabled(if: !isSanitized)) func `stalls are helped with, also if nothing reads standard error`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      setenv("COROUTINE_WORKERS", "1", 1)
      let whole = dup(STDERR_FILENO)
      BadConditionsTests.breakStandardError(isFull: true)
      for name in ["one", "two", "three"] {
        let isBlocked = Flag()
        co_launch(name: name) {
          isBlocked.raise()
          poll(nil, 0, -1)
        }
        while !isBlocked.isRaised { await Task.yield() }
        try await co_launch {}.value
      }
      // The test library writes there at the end.
      dup2(whole, STDERR_FILENO)
    }
  }

  /// No large mapping may be made any more: what fits into the memory that is left is answered.
  ///
  /// Tables of symbols and rings are not there. Not less than that: unoptimised code of Swift allocates in its loops,
  /// also on a thread that has just begun.
  @Test(.enabled(if: !isSanitized)) func `without memory the answers are shorter, and the process lives`() async {
    await #expect(processExitsWith: .success) {
      let gate = Gate()
      for _ in 0..<20 { co_launch(name: "parked") { try gate.pass() } }
      settle(20, stacks: false)
      let pages = try String(contentsOfFile: "/proc/self/statm", encoding: .utf8).prefix { $0 != " " }
      let mapped = try #require(UInt(pages)) * UInt(getpagesize())
      var limit = rlimit(rlim_cur: 1 << 20, rlim_max: .max)
      getrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limit)
      limit.rlim_cur = mapped + (8 << 20)
      #expect(setrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limit) == 0)
      let isComplete = BadConditionsTests.asksEverything()
      limit.rlim_cur = limit.rlim_max
      setrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limit)
      #expect(isComplete)
    }
  }
}
