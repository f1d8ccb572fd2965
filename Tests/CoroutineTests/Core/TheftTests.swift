import Dispatch
import Testing

@testable import Coroutine

#if canImport(Glibc)
import Glibc
#else
import Musl
#endif

@Suite("Thefts, and rests from them")
struct TheftTests {
  @Test func `three poor thefts in a row send a lane to rest, and after that each one more`() {
    var theft = Theft()
    #expect(stole(&theft, 10, lasting: 10 * Theft.worth - 1))
    #expect(stole(&theft, 1, lasting: 0))
    #expect(!stole(&theft, 1, lasting: 0))
    let afterRest = theft.pays(at: moment(0))
    #expect(afterRest)
    #expect(!stole(&theft, 1, lasting: 0))
  }

  @Test func `one theft that pays makes a lane as eager as before`() {
    var theft = Theft()
    for _ in 1..<Theft.patience { #expect(stole(&theft, 1, lasting: 0)) }
    #expect(stole(&theft, 10, lasting: 10 * Theft.worth))
    for _ in 1..<Theft.patience { #expect(stole(&theft, 1, lasting: 0)) }
    #expect(!stole(&theft, 1, lasting: 0))
  }

  @Test func `what has lasted until another thread took over the drain has paid`() {
    var theft = Theft()
    for _ in 0..<10 {
      theft.took(1, at: moment(0, thread: 1))
      let hasPaid = theft.pays(at: moment(1, thread: 2))
      #expect(hasPaid)
    }
  }

  @Test func `a lane that stole nothing has nothing to judge, and reads no clock`() {
    var theft = Theft()
    let mayLook = theft.pays(at: unread())
    #expect(mayLook)
  }

  /// A lane of a group that has gone to rest is sent to look again: nobody else tells it of the two jobs that need it.
  @Test(.timeLimit(.minutes(1)), .enabled(if: Processors.usable > 1))
  func `a lane that rests is sent to look for work again`() async throws {
    // Lives for ever, as the shared one does.
    let group = Unmanaged.passRetained(LaneGroup(count: 2, label: "resting")).takeUnretainedValue()
    for _ in 0..<20 {
      let (one, other) = (group.lanes[0], group.lanes[1])
      try await co_launch(on: #require(other.currentQueue)) {
        for _ in 1..<Theft.patience { _ = stole(&other.theft, 1, lasting: 0) }
        // Judged when this job has ended and its lane has nothing to do.
        other.theft.took(1_000_000, at: .now)
      }
      .value
      try await co_launch(on: #require(one.currentQueue)) {
        let (left, right) = (Flag(), Flag())
        let jobs = [
          co_launch { meet(left, right) },
          co_launch { meet(right, left) },
        ]
        for job in jobs { try job.join() }
      }
      .value
    }
  }

  /// Whether it should go on stealing, after so many stolen jobs have lasted so long.
  private func stole(_ theft: inout Theft, _ count: Int, lasting: UInt64) -> Bool {
    theft.took(count, at: moment(0))
    return theft.pays(at: moment(lasting))
  }

  private func moment(_ nanoseconds: UInt64, thread: UInt = 1) -> Theft.Moment {
    Theft.Moment(thread: thread, nanoseconds: nanoseconds)
  }

  private func unread() -> Theft.Moment {
    Issue.record("the clock was read")
    return moment(0)
  }
}

/// Holds the thread until the other one has come too: they must run on two lanes.
private func meet(_ mine: Flag, _ others: Flag) {
  mine.raise()
  while !others.isRaised { sched_yield() }
}
