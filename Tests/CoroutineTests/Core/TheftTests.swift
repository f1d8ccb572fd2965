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
