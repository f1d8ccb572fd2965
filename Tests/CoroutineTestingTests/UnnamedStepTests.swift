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

  @Test(.enabled(if: !isSanitized)) func `an unlock in a step that another coroutine makes of a generator`() {
    let (all, reduced) = outcomes {
      let lock = FairReadWriteLock()
      let (handed, own) = (Channel<Int>(.unbounded), Channel<Int>(.unbounded))
      // Sound because the coroutines make their steps one after the other.
      nonisolated(unsafe) let generator = co_sequence(of: Int.self) { yield in
        guard lock.tryLockWrite() else { return }
        try yield(1)
        lock.unlockWrite()
      }
      let jobs = [
        co_launch {
          _ = generator.next()
          try handed.send(0)
        },
        co_launch {
          _ = try handed.receive()
          _ = generator.next()
        },
      ]
      let looker = co_launch { () throws -> String in
        let first = lock.tryLockRead()
        try own.send(0)
        return "\(first) \(lock.tryLockRead())"
      }
      for job in jobs { try job.join() }
      return try looker.join()
    }
    #expect(all.contains("false true"))
    #expect(reduced == all)
  }

  @Test(.enabled(if: !isSanitized)) func `a use in the first part of a coroutine that starts immediately`() {
    let (all, reduced) = outcomes {
      let channel = Channel<Int>(.unbounded)
      let (one, other) = (Channel<Int>(.unbounded), Channel<Int>(.unbounded))
      let starter = co_launch {
        try one.send(0)
        try co_launch(start: .immediate) { try channel.send(1) }.join()
      }
      let looker = co_launch { () throws -> String in
        let first = channel.count
        try other.send(0)
        return "\(first) \(channel.count)"
      }
      try starter.join()
      return try looker.join()
    }
    #expect(all.contains("0 1"))
    #expect(reduced == all)
  }
}
