import Dispatch
import Glibc
import Testing

@testable import Coroutine

@Suite("Stealing, and backing off")
struct StealBackoffTests {
  @Test func `three unprofitable steals in a row make a worker back off, and after that each further one`() {
    var stealBackoff = StealBackoff()
    #expect(stole(&stealBackoff, 10, lasting: 10 * StealBackoff.worth - 1))
    #expect(stole(&stealBackoff, 1, lasting: 0))
    #expect(!stole(&stealBackoff, 1, lasting: 0))
    let afterRest = stealBackoff.pays(at: moment(0))
    #expect(afterRest)
    #expect(!stole(&stealBackoff, 1, lasting: 0))
  }

  @Test func `one steal that pays resets the count`() {
    var stealBackoff = StealBackoff()
    for _ in 1..<StealBackoff.limit { #expect(stole(&stealBackoff, 1, lasting: 0)) }
    #expect(stole(&stealBackoff, 10, lasting: 10 * StealBackoff.worth))
    for _ in 1..<StealBackoff.limit { #expect(stole(&stealBackoff, 1, lasting: 0)) }
    #expect(!stole(&stealBackoff, 1, lasting: 0))
  }

  @Test func `a steal that lasted until another thread took over the drain has paid`() {
    var stealBackoff = StealBackoff()
    for _ in 0..<10 {
      stealBackoff.took(1, at: moment(0, thread: 1))
      let hasPaid = stealBackoff.pays(at: moment(1, thread: 2))
      #expect(hasPaid)
    }
  }

  @Test func `a worker that stole nothing judges nothing, and reads no clock`() {
    var stealBackoff = StealBackoff()
    let mayLook = stealBackoff.pays(at: unread())
    #expect(mayLook)
  }

  /// Whether stealing pays after `count` stolen jobs have lasted this long.
  private func stole(_ stealBackoff: inout StealBackoff, _ count: Int, lasting: UInt64) -> Bool {
    stealBackoff.took(count, at: moment(0))
    return stealBackoff.pays(at: moment(lasting))
  }

  private func moment(_ nanoseconds: UInt64, thread: UInt = 1) -> StealBackoff.Moment {
    StealBackoff.Moment(thread: thread, nanoseconds: nanoseconds)
  }

  private func unread() -> StealBackoff.Moment {
    Issue.record("the clock was read")
    return moment(0)
  }
}
