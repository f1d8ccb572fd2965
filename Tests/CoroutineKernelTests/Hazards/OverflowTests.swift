import CCoroutine
import Coroutine
import Dispatch
import Glibc
import Testing

/// An endless recursion that the compiler cannot recognise; each frame uses some memory.
@inline(never)
func descendForEver(_ depth: Int) -> Int {
  withUnsafeTemporaryAllocation(of: Int.self, capacity: 16) { memory in
    memory.initialize(repeating: depth)
    return depth == 0 ? memory[7] : descendForEver(depth - 1) &+ memory[depth & 15]
  }
}

extension ExitTest.Condition {
  /// The sanitizers' own handlers, which run after the report, end the process with an exit code.
  static var overflow: ExitTest.Condition {
    let sanitizers = CCO_ADDRESS_SANITIZER.rawValue | CCO_THREAD_SANITIZER.rawValue
    return cco_compiled_sanitizers() & sanitizers != 0 ? .failure : .signal(SIGSEGV)
  }
}

@Suite("A coroutine that overflows its stack", .timeLimit(.minutes(10)))
struct OverflowTests {
  @Test func `is named in the report, on a queue and on the shared scheduler`() async {
    let onQueue = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      let job = co_launch(on: taggedQueue("deep"), name: "deep diver", stack: .bytes(64 << 10)) {
        descendForEver(1 << 40)
      }
      _ = try await job.value
    }
    let shared = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      _ = try await co_launch(name: "deep diver", stack: .bytes(64 << 10)) { descendForEver(1 << 40) }.value
    }
    for death in [onQueue, shared] {
      let words = String(decoding: death?.standardErrorContent ?? [], as: UTF8.self)
      #expect(words.contains(/coroutine "deep diver" \(id \d+\) overflowed its stack of 64 KiB/), "\(words)")
      #expect(words.contains(/launched at [^ ]*OverflowTests.swift:\d+\. Give it a larger one/), "\(words)")
    }
  }

  @Test func `is not confused with the previous user of its stack`() async {
    let death = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      let queue = taggedQueue("deep")
      let outer = co_launch(on: queue) {
        try co_launch(name: "innocent", stack: .bytes(64 << 10)) { try co_yield() }.join()
        _ = try co_launch(name: "guilty", stack: .bytes(64 << 10)) {
          try co_yield()
          return descendForEver(1 << 40)
        }.join()
      }
      try await outer.value
    }
    let words = String(decoding: death?.standardErrorContent ?? [], as: UTF8.self)
    #expect(words.contains("coroutine \"guilty\"") && !words.contains("innocent"), "\(words)")
  }

  @Test func `and has no name is reported by number and launch site`() async {
    let death = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      _ = try await co_launch(start: .immediate) { descendForEver(1 << 40) }.value
    }
    let words = String(decoding: death?.standardErrorContent ?? [], as: UTF8.self)
    #expect(
      words.contains(/coroutine \(id \d+\) overflowed its stack of \d+ KiB; launched at [^ ]*OverflowTests/),
      "\(words)"
    )
  }
}
