import CMallocCount
import Coroutine
import Dispatch
import Glibc
import Harness

/// Whether the counted coroutine has its queue to itself.
enum Company {
  case alone
  /// Another coroutine gives way all the time, so that the queue never goes idle and every switch has somewhere to go.
  case busy
}

/// What was counted so far, in the order of counting.
struct Counts {
  private(set) var rows: [(name: String, perOperation: Double)] = []

  /// Counts the allocations of `operations` operations, which `body` does on a coroutine of a serial queue.
  ///
  /// The count is of the whole process, so that nothing escapes it; what a thread of Dispatch does now and then on its
  /// own is not the operation's, hence the least of several rounds. The first rounds warm up what is made once: pools,
  /// caches.
  mutating func count(
    _ name: String,
    _ operations: Int,
    _ company: Company = .alone,
    _ body: @escaping (Int) throws -> Void
  ) throws {
    try countWithin(name, operations, company) { count in { try body(count) } }
  }

  /// As count, where an operation needs something made for it first: `prepare` makes it, uncounted, and returns what is
  /// counted.
  mutating func countWithin(
    _ name: String,
    _ operations: Int,
    _ company: Company = .alone,
    _ prepare: @escaping (Int) throws -> () throws -> Void
  ) throws {
    nonisolated(unsafe) let prepare = prepare  // Sound because the caller waits for the one coroutine that uses it.
    let queue = DispatchQueue(label: "allocations")
    let counted = co_launch(on: queue) {
      var least = UInt64.max
      for round in 0..<12 {
        let body = try prepare(operations)
        let before = cmalloc_count()
        try body()
        let taken = cmalloc_count() - before
        if round >= 3 { least = min(least, taken) }
      }
      return least
    }
    if company == .busy {
      co_launch(on: queue) { while !counted.isFinished { try co_yield() } }
    }
    let perOperation = Double(try counted.blockingWait()) / Double(operations)
    rows.append((name, perOperation))
    print("allocations/\(name)\t\(perOperation)")
  }
}

/// Ends the program without running anything more of it.
func end(_ code: Int32) -> Never {
  fflush(nil)
  exit(code)
}
