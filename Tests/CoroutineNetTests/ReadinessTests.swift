import Testing

@testable import Coroutine

/// The word of one direction, and the records of the table.
@Suite("Readiness", .timeLimit(.minutes(10)))
struct ReadinessTests {
  private func withUse(_ body: (WatchTable.Use) throws -> Void) throws {
    let use = try #require(WatchTable.take())
    try body(use)
    use.record.close()
    (use.record + 1).close()
    WatchTable.give(use)
  }

  @Test func `a new direction is ready, and idle after a try in vain`() throws {
    try withUse { use in
      let seen = use.record.word
      #expect(seen.state == .ready)
      use.record.clear(seen)
      #expect(use.record.word.state == .idle)
    }
  }

  @Test func `an event during a try in vain is not lost`() throws {
    try withUse { use in
      let seen = use.record.word
      use.record.happened(use.generation, sticks: false)
      use.record.clear(seen)
      #expect(use.record.word.state == .ready)
    }
  }

  @Test func `an event after a try in vain makes the direction ready`() throws {
    try withUse { use in
      use.record.clear(use.record.word)
      use.record.happened(use.generation, sticks: false)
      #expect(use.record.word.state == .ready)
    }
  }

  @Test func `a short read proves that nothing is left, unless something has come meanwhile`() throws {
    try withUse { use in
      use.record.clear(use.record.word, afterShortRead: true)
      #expect(use.record.word.state == .idle)
      use.record.happened(use.generation, sticks: false)
      let seen = use.record.word
      use.record.happened(use.generation, sticks: false)
      use.record.clear(seen, afterShortRead: true)
      #expect(use.record.word.state == .ready)
    }
  }

  @Test func `after the peer's end a short read proves nothing, and a try in vain does`() throws {
    try withUse { use in
      use.record.happened(use.generation, sticks: true)
      use.record.clear(use.record.word, afterShortRead: true)
      #expect(use.record.word.state == .ready)
      use.record.clear(use.record.word)
      #expect(use.record.word.state == .idle)
      use.record.happened(use.generation, sticks: false)
      use.record.clear(use.record.word, afterShortRead: true)
      #expect(use.record.word.state == .ready)
    }
  }

  @Test func `an event of an earlier generation changes nothing`() throws {
    try withUse { use in
      use.record.clear(use.record.word)
      use.record.happened(use.generation &- 1, sticks: true)
      #expect(use.record.word.state == .idle)
      #expect(!use.record.word.isStuck)
    }
  }

  @Test func `a closed direction stays closed, and the next use of its record has another generation`() throws {
    var used: [UInt32: UInt32] = [:]
    for _ in 0..<3 {
      try withUse { use in
        use.record.close()
        use.record.happened(use.generation, sticks: false)
        #expect(use.record.word.state == .closed)
        #expect(used[use.index] != use.generation)
        used[use.index] = use.generation
      }
    }
  }

  @Test func `the tick passes its limit without touching the generation`() {
    var word = ReadyWord(generation: 7)
    word.bits |= 0xFFFF_FFF0
    let next = word.afterEvent(sticks: false)
    #expect(next.generation == 7)
    #expect(next != word)
    #expect(next.state == .ready)
  }

  @Test func `the table grows, and gives out each record once`() throws {
    let uses = (0..<3_000).compactMap { _ in WatchTable.take() }
    #expect(Set(uses.map(\.index)).count == 3_000)
    #expect(uses.allSatisfy { $0.record == WatchTable.record($0.index) })
    for use in uses {
      use.record.close()
      (use.record + 1).close()
      WatchTable.give(use)
    }
    #expect(WatchTable.record(WatchTable.noIndex) == nil)
  }
}
