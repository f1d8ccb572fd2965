import Testing

@testable import Coroutine

/// What a select costs: that the cases on the usual path need no memory but the stack's.
@Suite("co_select: memory")
struct SelectSlotTests {
  @Test func `eight cases and their nodes fit into what Swift takes from the stack`() {
    #expect(8 * MemoryLayout<SelectCase<Int>>.stride < 1_024)
    #expect(8 * MemoryLayout<SelectNode>.stride < 1_024)
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

  @Test func `larger ones are boxed, and what holds references is when it is sent`() {
    #expect(needsMemory((1, 2, 3, 4, 5)) == (true, true))
    #expect(needsMemory("text") == (true, false))
  }

  /// A shared word would go from core to core with each select.
  @Test(arguments: [0x80_0000, 0x80_1000, 0x8_0000, 0x8_1000, 0x10_0000, 0x1000] as [UInt])
  func `threads draw random numbers from different words`(distance: UInt) {
    let groups = (0..<16).map { SelectRandom.group(of: 0x7FFF_F7A0_0000 &- $0 &* distance) }
    #expect(groups.allSatisfy { (0..<16).contains($0) })
    #expect(Set(groups).count >= 4, "\(groups)")
  }
}
