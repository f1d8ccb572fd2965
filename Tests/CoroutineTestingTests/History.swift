import Synchronization

/// What coroutines did with an object, each operation with the moments of its call and its return.
///
/// Linearizable (Herlihy and Wing, 1990): the operations can be put in an order that a sequential model allows, in
/// which one that returned before another was called comes first. An operation takes effect once, between its call and
/// its return, however long it waits. Coroutines of a world use it, and coroutines on threads, in the stress tests.
final class History<Model: Sendable>: Sendable {
  private struct Operation: Sendable {
    let start: Int
    let end: Int
    let answer: any Sendable
    /// Does it to the model; returns false if the model would have answered differently, or would have waited.
    let apply: @Sendable (inout Model) -> Bool
  }

  private let moments = Atomic(0)
  private let operations = Locked<[Operation]>([])

  /// Calls `operation`, and records it with what the model must do for its answer.
  func callAsFunction<Answer: Sendable>(
    _ operation: () throws -> Answer,
    _ apply: @escaping @Sendable (inout Model, Answer) -> Bool
  ) rethrows {
    let start = nextMoment()
    let answer = try operation()
    let done = Operation(start: start, end: nextMoment(), answer: answer, apply: { apply(&$0, answer) })
    operations.withLock { $0.append(done) }
  }

  /// No two are equal.
  private func nextMoment() -> Int { moments.wrappingAdd(1, ordering: .sequentiallyConsistent).newValue }

  func isLinearizable(from model: Model) -> Bool {
    let operations = operations.current
    func follows(_ model: Model, _ left: [Int]) -> Bool {
      if left.isEmpty { return true }
      let firstEnd = left.reduce(Int.max) { min($0, operations[$1].end) }
      return left.contains { index in
        guard operations[index].start < firstEnd else { return false }
        var next = model
        return operations[index].apply(&next) && follows(next, left.filter { $0 != index })
      }
    }
    return follows(model, Array(operations.indices))
  }

  var description: String {
    operations.current.map { "\($0.start)...\($0.end): \($0.answer)" }.joined(separator: ", ")
  }
}
