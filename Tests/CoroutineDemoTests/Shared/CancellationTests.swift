#if Demo
import Testing

@testable import CoroutineDemo

@Suite struct `A cancellation and what it cancels` {
  private struct Reason: Error, Equatable {
    var number: Int
  }

  @Test func `meet when the cancellation comes second`() {
    let seen = Locked<[Int]>([])
    let cancellation = Cancellation()
    cancellation.covers { reason in seen.withLock { $0.append((reason as? Reason)?.number ?? -1) } }
    #expect(seen.withLock { $0 } == [])
    cancellation.cancel(Reason(number: 1))
    cancellation.cancel(Reason(number: 2))
    #expect(seen.withLock { $0 } == [1])
  }

  @Test func `meet when the cancellation comes first`() {
    let seen = Locked<[Int]>([])
    let cancellation = Cancellation()
    cancellation.cancel(Reason(number: 1))
    cancellation.cancel(Reason(number: 2))
    cancellation.covers { reason in seen.withLock { $0.append((reason as? Reason)?.number ?? -1) } }
    #expect(seen.withLock { $0 } == [1])
  }
}
#endif
