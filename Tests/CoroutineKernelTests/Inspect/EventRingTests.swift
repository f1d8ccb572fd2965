import Synchronization
import Testing

@testable import Coroutine

@Suite("EventRing", .timeLimit(.minutes(10)))
struct EventRingTests {
  private func ring(_ capacity: Int) -> EventRing {
    EventRing("test", number: 1, bytes: capacity * EventRing.bytesOfEvent, recording: 1, start: 0)!
  }

  @Test func `a ring keeps the last events in their order`() {
    let ring = ring(64)
    #expect(ring.read().events.isEmpty)
    for index in 0..<10 { ring.append(UInt64(index), UInt64(index)) }
    #expect(ring.read().events.map(\.first) == Array(0..<10))
    for index in 10..<200 { ring.append(UInt64(index), UInt64(index)) }
    // One fewer than the capacity: the oldest one may be being overwritten.
    #expect(ring.read().events.map(\.first) == Array(137..<200))
  }

  @Test func `events that are overwritten while they are copied are dropped`() {
    let ring = ring(64)
    for index in 0..<100 { ring.append(UInt64(index), UInt64(index)) }
    let (events, lost) = ring.read { for index in 100..<120 { ring.append(UInt64(index), UInt64(index)) } }
    #expect(events.map(\.first) == Array(57..<100) && lost == 57)
    let rest = ring.read { for index in 120..<300 { ring.append(UInt64(index), UInt64(index)) } }
    #expect(rest.events.isEmpty && rest.lost == 120)
  }

  @Test(arguments: [64, 1_000, 1_024, 1_025]) func `the capacity is a power of two that fits`(_ wanted: Int) {
    let capacity = ring(wanted).capacity
    #expect(capacity <= wanted && capacity * 2 > wanted && capacity.nonzeroBitCount == 1)
  }

  @Test func `no event that a reader gets is torn, while the ring is written without a pause`() async throws {
    let ring = ring(64)
    let isOver = Atomic<Bool>(false)
    async let writer: Void = onOwnThread {
      var index: UInt64 = 0
      while !isOver.load(ordering: .relaxed) {
        ring.append(index, index &* 0x9E37_79B9_7F4A_7C15)
        index += 1
      }
    }
    var (found, last) = (0, UInt64(0))
    // Until so many have been read, however the threads take turns.
    let wanted = isSanitized ? 2_000 : 20_000
    while found < wanted {
      let events = ring.read().events
      for (one, next) in zip(events, events.dropFirst()) { try #require(next.first == one.first + 1) }
      for event in events { try #require(event.second == event.first &* 0x9E37_79B9_7F4A_7C15) }
      try #require((events.first?.first ?? last) >= last)
      last = events.first?.first ?? last
      found += events.count
      await Task.yield()
    }
    isOver.store(true, ordering: .relaxed)
    try await writer
  }
}
