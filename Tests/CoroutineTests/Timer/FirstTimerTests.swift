import Dispatch
import Testing

@testable import Coroutine

import Glibc

/// Each in a process of its own, which may open no descriptor beyond the first three, which are open.
@Suite("The first timer of a process", .timeLimit(.minutes(1)))
struct FirstTimerTests {
  @Test func `goes off although no descriptor is left, where the runtime has begun before`() async {
    await #expect(processExitsWith: .success) {
      try co_launch {}.wait()
      while !FirstTimer.shared.works { sched_yield() }
      allowDescriptors(upTo: 3)
      try co_launch { try co_delay(.milliseconds(1)) }.wait()
      exit(dup(0) < 0 ? 0 : 1)
    }
  }

  /// By the wall clock, because the test library has set timers of the other one in this process already.
  @Test func `has those go off that Dispatch has lost, and ends when there is a descriptor`() async {
    await #expect(processExitsWith: .success) {
      let before = allowDescriptors(upTo: 3)
      let lost = DispatchSource.makeTimerSource()
      let wentOff = Flag()
      lost.setEventHandler { wentOff.raise() }
      lost.schedule(wallDeadline: .now() + .milliseconds(20))
      lost.activate()
      let first = FirstTimer { $0.schedule(wallDeadline: .now() + .milliseconds(1)) }
      first.ensure()
      while !wentOff.isRaised { sched_yield() }
      if first.works { exit(1) }
      allowDescriptors(upTo: before)
      while !first.works { sched_yield() }
      withExtendedLifetime((lost, first)) {}
      exit(0)
    }
  }
}

/// From now on every new descriptor must be less than `limit`; returns what the limit was.
@discardableResult
private func allowDescriptors(upTo limit: rlim_t) -> rlim_t {
  var limits = rlimit()
  getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limits)
  let before = limits.rlim_cur
  limits.rlim_cur = limit
  precondition(setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limits) == 0)
  return before
}
