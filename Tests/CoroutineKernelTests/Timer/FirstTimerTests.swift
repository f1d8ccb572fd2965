import CTestSupport
import Dispatch
import Glibc
import Testing

@testable import Coroutine

/// Each test runs in a separate process, which may open no further descriptor.
@Suite("The first timer of a process", .timeLimit(.minutes(10)))
struct FirstTimerTests {
  // The first timer of a process is one of Dispatch.
  @Test(.tags(.realClock)) func `fires even if no descriptor is left, if the runtime has started before`() async {
    await #expect(processExitsWith: .success) {
      try synchronously { try co_launch {}.blockingWait() }
      while !FirstTimer.shared.works { sched_yield() }
      // A thread that is about to open a descriptor of Dispatch would end the process.
      while !cts_other_threads_sleep() { sched_yield() }
      let before = cts_limit_descriptors(3)
      try synchronously { try co_launch { try co_delay(.milliseconds(1)) }.blockingWait() }
      let isRefused = dup(0) < 0
      // LeakSanitizer reads a file at the exit.
      _ = cts_limit_descriptors(before)
      exit(isRefused ? 0 : 1)
    }
  }

  // The first timer of a process is one of Dispatch.
  @Test(.tags(.realClock)) func `fires even if no descriptor is left when the process begins`() async throws {
    let status = try await onCoroutine {
      let child = try #require(spawn(folderOfTests() + "/NoDescriptors"))
      return try co_blocking { cts_end_of(child) }
    }
    #expect(status == 0)
  }

  /// On the wall clock, because the test library has already set timers on the other clock in this process.
  // The first timer of a process is one of Dispatch.
  @Test(.tags(.realClock))
  func `makes timers fire that Dispatch has lost, and ends when there is a descriptor`() async {
    await #expect(processExitsWith: .success) {
      // Dispatch, which the test library has used, has the descriptors that it cannot do without.
      while !cts_other_threads_sleep() { sched_yield() }
      let before = cts_limit_descriptors(3)
      let lost = DispatchSource.makeTimerSource()
      let wentOff = Flag()
      lost.setEventHandler { wentOff.raise() }
      lost.schedule(wallDeadline: .now() + .milliseconds(20))
      lost.activate()
      let first = FirstTimer { $0.schedule(wallDeadline: .now() + .milliseconds(1)) }
      first.ensure()
      while !wentOff.isRaised { sched_yield() }
      if first.works { exit(1) }
      _ = cts_limit_descriptors(before)
      while !first.works { sched_yield() }
      withExtendedLifetime((lost, first)) {}
      exit(0)
    }
  }
}
