import Coroutine
import Testing

/// Swift keeps the accesses in progress in a list per thread.
///
/// A coroutine that suspends within an access must take its part of that list along: otherwise another coroutine's
/// access is reported as a violation, or the list is corrupted on another thread.
@Suite("Exclusivity across suspensions", .timeLimit(.minutes(10)))
struct ExclusivityTests {
  private final class Box: @unchecked Sendable {
    // Sound because all accesses come from coroutines of one serial queue, or from one coroutine that moves.
    var count = 0
    var names: [String] = []
  }

  @inline(never)
  private static func change<Value>(_ value: inout Value, _ body: (inout Value) throws -> Void) rethrows {
    try body(&value)
  }

  @Test func `other coroutines may use the object while one is suspended within an inout access`() async throws {
    let box = Box()
    try await onSerialQueue {
      let job = co_launch {
        try Self.change(&box.count) { count in
          count += 1
          try co_yield()
          count += 1
        }
      }
      let others = (0..<3).map { _ in
        co_launch {
          Self.change(&box.names) { $0.append("other") }
          _ = box.count
        }
      }
      for other in others { try other.join() }
      try job.join()
    }
    #expect(box.count == 2)
    #expect(box.names.count == 3)
  }

  @Test func `accesses may end in another order than they began`() async throws {
    let boxes = [Box(), Box(), Box()]
    try await onSerialQueue {
      let gates = [Gate(), Gate(), Gate()]
      let jobs = (0..<3).map { n in
        co_launch {
          try Self.change(&boxes[n].count) { count in
            try gates[n].pass()
            count += n + 1
          }
        }
      }
      try co_yield()
      for n in [0, 2, 1] {
        gates[n].open()
        try jobs[n].join()
      }
    }
    #expect(boxes.map(\.count) == [1, 2, 3])
  }

  @Test func `an access survives a move to another queue and thread`() async throws {
    let box = Box()
    let queues = (0..<3).map { taggedQueue("\($0)") }
    try await onCoroutine(on: queues[0]) {
      try Self.change(&box.count) { count in
        for hop in 1...300 {
          try co_switch(to: queues[hop % 3])
          count += 1
        }
      }
    }
    #expect(box.count == 300)
  }

  @Test func `a cancellation ends an access during unwinding`() async throws {
    let box = Box()
    let seen = try await onSerialQueue {
      let job = co_launch { try Self.change(&box.count) { _ in try waitForCancellation() } }
      try co_yield()
      job.cancel()
      let seen = outcome { try job.join() }
      Self.change(&box.count) { $0 += 1 }
      return seen
    }
    #expect(seen == "CancellationError")
    #expect(box.count == 1)
  }

  @Test func `an immediate body within its caller's access has its own accesses`() async throws {
    let box = Box()
    try await onSerialQueue {
      try Self.change(&box.count) { count in
        let inner = co_launch(start: .immediate) {
          try Self.change(&box.names) { names in
            names.append("before")
            try co_yield()
            names.append("after")
          }
        }
        count += 1
        try inner.join()
        count += 1
      }
    }
    #expect(box.count == 2)
    #expect(box.names == ["before", "after"])
  }
}
