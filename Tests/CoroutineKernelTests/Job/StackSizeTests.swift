import Coroutine
import Testing

@Suite("Stack sizes", .timeLimit(.minutes(10)))
struct StackSizeTests {
  @Test(arguments: [0, 1, 16 * 1024, 16 * 1024 + 1, 100_000, 512 * 1024, 1 << 20, 16 << 20])
  func `a size is rounded up to a class that holds it`(bytes: Int) async throws {
    // The smallest class leaves little room: the body calls almost nothing, and Swift creates the metadata of its
    // types, which needs more, in a first run on a large stack.
    #expect(try await co_launch(stack: .standard) { bytes }.value == bytes)
    #expect(try await co_launch(stack: .bytes(bytes)) { bytes }.value == bytes)
  }

  @Test(arguments: [(16 << 20) + 1, 1 << 40, Int.max])
  func `a size beyond the largest class is a typed error, and the body never runs`(bytes: Int) async throws {
    let trace = Trace()
    let ended = Gate()
    let job = co_launch(stack: .bytes(bytes)) { trace("body") }.finally { ended.open() }
    #expect(await asyncOutcome { try await job.value } == "stackTooLarge")
    try await onCoroutine { try ended.pass() }
    #expect(job.isFinished)
    #expect(trace.all.isEmpty)
  }

  @Test func `a coroutine that joins a job with too large a stack gets the error`() async throws {
    let seen = try await onSerialQueue {
      outcome { try co_launch(stack: .bytes(1 << 40)) { 1 }.join() }
    }
    #expect(seen == "stackTooLarge")
  }

  @Test func `a child of a scope has the stack that its launch names`() async throws {
    let seen = try await onSerialQueue {
      outcome { try co_scope { $0.launch(stack: .bytes(1 << 40)) { 1 } } }
    }
    #expect(seen == "stackTooLarge")
    let depth = try await onSerialQueue {
      try co_scope { scope in try scope.launch(stack: .bytes(16 << 20)) { recurse(2_000) {} }.join() }
    }
    #expect(depth == 2_000)
  }

  @Test func `a large stack holds a recursion that the standard one could not`() async throws {
    // About 1.2 KiB a level in a debug build: over 2 MiB in all.
    #expect(try await co_launch(stack: .bytes(16 << 20)) { recurse(2_000) {} }.value == 2_000)
  }

  @Test func `the standard stack holds a recursion 200 KiB deep, with a suspension at the bottom`() async throws {
    #expect(try await co_launch { try recurse(160) { try co_yield() } }.value == 160)
  }

  @Test func `equal sizes are equal`() {
    #expect(StackSize.bytes(4096) == .bytes(4096))
    #expect(StackSize.bytes(4096) != .standard)
  }
}

/// Recurses `levels` deep with a kilobyte per level, runs `bottom` there, and counts the levels while returning.
@inline(never)
private func recurse(_ levels: Int, _ bottom: () throws -> Void) rethrows -> Int {
  guard levels > 0 else {
    try bottom()
    return 0
  }
  return try withUnsafeTemporaryAllocation(byteCount: 1_000, alignment: 8) { room in
    room.initializeMemory(as: UInt8.self, repeating: UInt8(truncatingIfNeeded: levels))
    let below = try recurse(levels - 1, bottom)
    return below + (room[999] == UInt8(truncatingIfNeeded: levels) ? 1 : 0)
  }
}
