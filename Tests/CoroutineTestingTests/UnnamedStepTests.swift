import Coroutine
import CoroutineTesting
import Synchronization
import Testing

/// Exhaustive search over steps that use an object of which their coroutine knew nothing before.
@Suite(.timeLimit(.minutes(5)))
struct UnnamedStepTests {
  /// The outcomes over all schedules, if memory is shared, and if nothing is but what coroutines wait for.
  private func outcomes(_ body: @escaping @Sendable () throws -> String) -> (all: Set<String>, reduced: Set<String>) {
    func search(_ sharing: Exploration.Sharing) -> Set<String> {
      let seen = Mutex<Set<String>>([])
      let found = explore(.exhaustive(preemptions: 3), sharing: sharing) {
        let outcome = try body()
        seen.withLock { _ = $0.insert(outcome) }
      }
      #expect(found.isComplete)
      return seen.withLock { $0 }
    }
    return (search(.memory), search(.waits))
  }

  /// Launches the bodies in an order, and joins all; a search begins with the order of the launches.
  private static func run(_ bodies: [@Sendable () throws -> String], _ order: [Int]) throws -> String {
    let jobs = order.map { co_launch(bodies[$0]) }
    return try jobs.map { try $0.join() }.filter { !$0.isEmpty }.joined()
  }

  @Test(
    .enabled(if: !isSanitized),
    arguments: [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
  )
  func `an unlock in a step that another coroutine makes of a generator`(order: [Int]) {
    let (all, reduced) = outcomes {
      let lock = FairReadWriteLock()
      let (handed, own) = (Channel<Int>(.unbounded), Channel<Int>(.unbounded))
      // Sound because the coroutines make their steps one after the other.
      nonisolated(unsafe) let generator = co_sequence(of: Int.self) { yield in
        guard lock.tryLockWrite() else { return }
        try yield(1)
        lock.unlockWrite()
      }
      return try Self.run(
        [
          {
            _ = generator.next()
            try handed.send(0)
            return ""
          },
          {
            _ = try handed.receive()
            _ = generator.next()
            return ""
          },
          {
            let first = lock.tryLockWrite()
            try own.send(0)
            return "\(first) \(lock.tryLockWrite())"
          },
        ],
        order
      )
    }
    #expect(all.contains("false true"))
    #expect(reduced == all)
  }

  @Test(.enabled(if: !isSanitized), arguments: [[0, 1], [1, 0]])
  func `a use in the first part of a coroutine that starts immediately`(order: [Int]) {
    let (all, reduced) = outcomes {
      let channel = Channel<Int>(.unbounded)
      let (one, other) = (Channel<Int>(.unbounded), Channel<Int>(.unbounded))
      return try Self.run(
        [
          {
            try one.send(0)
            co_launch(start: .immediate) { try channel.send(1) }
            return ""
          },
          {
            let first = channel.count
            try other.send(0)
            return "\(first) \(channel.count)"
          },
        ],
        order
      )
    }
    #expect(all.contains("0 1"))
    #expect(reduced == all)
  }
}
