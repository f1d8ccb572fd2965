import Testing

@testable import Coroutine

/// The memory of a select: usual cases need no memory but the stack.
@Suite("co_select: memory")
struct SelectSlotTests {
  @Test func `eight cases and their waiters fit into what Swift takes from the stack`() {
    #expect(8 * MemoryLayout<SelectCase<Int>>.stride < 1_024)
    #expect(8 * MemoryLayout<SelectWaiter>.stride < 1_024)
  }

  private func needsMemory<Value: Sendable>(_ value: Value) -> (send: Bool, receive: Bool) {
    let channel = Channel<Value>()
    return (
      channel.onSend(value) {}.source.needsPreparation, channel.onReceive { _ in }.source.needsPreparation
    )
  }

  @Test func `values of up to four words of bits travel in the case`() {
    #expect(needsMemory(1) == (false, false))
    #expect(needsMemory((1, 2, 3, 4)) == (false, false))
    #expect(needsMemory((1, 2, 3, UInt8(4))) == (false, false))
  }

  @Test func `larger values are boxed, and so are sent values with references`() {
    #expect(needsMemory((1, 2, 3, 4, 5)) == (true, true))
    #expect(needsMemory("text") == (true, false))
  }

  @Test func `carriers that start at different times draw different numbers, and all cases are equally likely`() {
    var ones = 0
    var drawn: Set<UInt64> = []
    for start in UInt64(0)..<1000 {
      var carrier = Carrier(scheduler: nil, readyQueue: nil, now: 1_000_000 + start)
      let number = carrier.drawNumber()
      drawn.insert(number)
      ones += Int(number >> 63)
    }
    #expect(drawn.count == 1000)
    #expect((400...600).contains(ones))
  }
}
