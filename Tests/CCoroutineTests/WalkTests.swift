import CCoroutineInspect
import Glibc
import Synchronization
import Testing

/// The three words of a record, of which a reader gets the addresses, in memory that does not move.
private final class Record: Sendable {
  // Sound because the words are atomic, and the memory lives as long as this object.
  nonisolated(unsafe) private let words = UnsafeMutablePointer<Atomic<UInt64>>.allocate(capacity: 3)
  let isOver = Atomic<Bool>(false)

  // No context yet; `wait` stays as it is.
  init() { for index in 0..<3 { (words + index).initialize(to: Atomic(index == 0 ? 0 : 1)) } }
  deinit { words.deallocate() }

  var context: UnsafeMutablePointer<Atomic<UInt64>> { words }
  var since: UnsafeMutablePointer<Atomic<UInt64>> { words + 2 }

  private func address(_ index: Int) -> UnsafePointer<UInt64> {
    UnsafeRawPointer(words + index).assumingMemoryBound(to: UInt64.self)
  }

  /// Walks the coroutine as a snapshot does; nil if it has moved.
  func walk(_ begun: inout cco_walk) -> [UInt]? {
    var frames = [UInt](repeating: 0, count: 32)
    return frames.withUnsafeMutableBufferPointer { frames in
      var target = cco_walk_target(
        context: UnsafeRawPointer(address(0)),
        wait: address(1),
        since: address(2),
        wait_word: 1,
        since_word: since.pointee.load(ordering: .acquiring),
        frames: frames.baseAddress!,
        most: UInt32(frames.count),
        count: 0,
        outcome: CCO_WALK_NONE,
        is_whole: false,
        own: nil,
        stack: nil
      )
      cco_walk_stacks(&begun, &target, 1)
      return target.outcome == CCO_WALK_WALKED ? Array(frames.prefix(Int(target.count))) : nil
    }
  }
}

@inline(never) private func parkInOne(_ fiber: Fiber) -> Int { fiber.suspend(1) &+ 1 }
@inline(never) private func parkInOther(_ fiber: Fiber) -> Int { fiber.suspend(2) &+ 2 }

@Suite("Walks", .enabled(if: !Machine.isSanitized), .timeLimit(.minutes(10)))
struct WalkTests {
  // The record's coroutine ends between two reads of the reader, and another one gets its stack, and parks as deep.
  // The ended one has written neither word.
  @Test("A stack that another coroutine has got meanwhile is not taken for that of the one that has ended")
  func reused() throws {
    let record = Record()
    let thread = startThread {
      let fiber = try Fiber { fiber in
        while parkInOne(fiber) != 0, parkInOther(fiber) != 0 {}
      }
      let address = UInt64(UInt(bitPattern: fiber.context))
      try fiber.resume(1)
      while !record.isOver.load(ordering: .relaxed) {
        // Another record's life begins.
        record.since.pointee.wrappingAdd(1, ordering: .releasing)
        record.context.pointee.store(address, ordering: .releasing)
        for _ in 0..<20 { sched_yield() }
        record.context.pointee.store(0, ordering: .releasing)
        try fiber.resume(1)
        for _ in 0..<20 { sched_yield() }
        try fiber.resume(1)
      }
      // Ends in the first function: its answer is zero.
      try fiber.resume(-1)
      try fiber.destroy()
    }
    var begun = cco_walk()
    try #require(cco_walk_begin(&begun) == CCO_WALK_READY)
    var seen: Set<[UInt]> = []
    let end = ContinuousClock.now + .seconds(1)
    var accepted = 0
    while ContinuousClock.now < end || accepted < 1_000 {
      guard let frames = record.walk(&begun) else { continue }
      seen.insert(frames)
      accepted += 1
    }
    record.isOver.store(true, ordering: .relaxed)
    pthread_join(thread, nil)
    cco_walk_end(&begun)
    // Where the one coroutine parks: each other stack is that of another one.
    #expect(seen.count == 1, "\(seen.map { $0.map { String($0, radix: 16) } })")
  }
}
