import CCoroutine
import Dispatch
import Synchronization
import Testing

@testable import Coroutine

@Suite("Stress: biased locks", .timeLimit(.minutes(10)), .enabled(if: cco_can_fence_all()))
struct BiasStressTests {
  /// The owner of a bias works under the lock by plain stores while another thread ends the bias.
  ///
  /// Were both inside at once, a plain count would lose some, and ThreadSanitizer would report it.
  @Test func `a bias is ended under its owner's hands, and nobody is inside together with it`() async throws {
    let stress = Stress()
    let locks = stress.rounds(4_000)
    let shared = Shared(locks)
    try await onThreads(2) { thread in
      for index in 0..<locks {
        // The owner runs ahead by warming the lock; then both meet.
        if thread == 0 { shared.workAsOwner(index) } else { shared.intrude(index) }
      }
    }
    for index in 0..<locks { #expect(shared.counts[index] == Shared.ownUses + Shared.intrusions, "lock \(index)") }
  }

  @Test func `a channel and a mutex that one queue had to itself serve others as well`() async throws {
    let stress = Stress()
    for _ in 0..<stress.rounds(100) {
      let (channel, mutex) = (Channel<Int>(.bounded(4)), FairMutex())
      let held = UnsafeMutablePointer<Int>.allocate(capacity: 1)
      held.initialize(to: 0)
      defer { held.deallocate() }
      nonisolated(unsafe) let count = held  // Sound because it is changed by who has the mutex.
      let own = queues(1)[0]
      let work: @Sendable (Int) throws -> Void = { rounds in
        for value in 0..<rounds {
          try mutex.withLock { count.pointee += 1 }
          try channel.send(value)
          _ = try channel.receive()
        }
      }
      let uses = 2_000
      let first = co_launch(on: own) { try work(uses) }
      let second = co_launch(on: own) { try work(uses) }
      // They come somewhere in the middle.
      let late = (0..<2).map { _ in co_launch { try work(uses) } }
      for job in [first, second] + late { try await job.value }
      #expect(held.pointee == 4 * uses)
      #expect(channel.count == 0)
    }
  }
}

private final class Shared: @unchecked Sendable {
  // Sound because a count is changed under the lock of its index, which is what is tested.
  static let (ownUses, intrusions) = (3 * Int(SpinLock.limit), 8)
  let locks: UnsafeMutablePointer<SpinLock>
  let counts: UnsafeMutablePointer<Int>
  private let size: Int
  private let key = LockKey.make()

  init(_ size: Int) {
    self.size = size
    locks = .allocate(capacity: size)
    counts = .allocate(capacity: size)
    for index in 0..<size { (locks + index).initialize(to: SpinLock()) }
    counts.initialize(repeating: 0, count: size)
  }

  deinit {
    locks.deinitialize(count: size)
    locks.deallocate()
    counts.deallocate()
  }

  func workAsOwner(_ index: Int) {
    for _ in 0..<Self.ownUses {
      let hold = locks[index].lock(as: key)
      counts[index] += 1
      locks[index].unlock(hold)
    }
  }

  /// Waits until the lock is biased, then comes in, again and again.
  func intrude(_ index: Int) {
    while locks[index].word.load(ordering: .relaxed) != 2 {}
    for _ in 0..<Self.intrusions { locks[index].withLock { counts[index] += 1 } }
  }
}
