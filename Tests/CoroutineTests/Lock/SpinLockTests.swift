import CCoroutine
import Dispatch
import Synchronization
import Testing

@testable import Coroutine

@Suite("Spin lock", .enabled(if: cco_can_fence_all()))
struct SpinLockTests {
  private let ours = LockKey.make()
  private let theirs = LockKey.make()

  @Test func `a lock that one scheduler has used for a while is biased to it`() {
    let lock = SpinLock()
    for _ in 1..<SpinLock.limit { #expect(lock.takes(as: ours) == .exclusive) }
    #expect(lock.takes(as: ours) == .biased)
    #expect(lock.takes(as: ours) == .biased)
    #expect(lock.word.load(ordering: .relaxed) == 2)
  }

  @Test func `the first other user ends a bias for good`() {
    let lock = SpinLock()
    lock.warm(as: ours)
    #expect(lock.takes(as: theirs) == .exclusive)
    for _ in 0..<2 {
      lock.warm(as: theirs)
      lock.warm(as: ours)
    }
    #expect(lock.takes(as: ours) == .exclusive)
    #expect(lock.owner.load(ordering: .relaxed) == SpinLock.shared)
  }

  @Test func `who has no key ends a bias as well`() {
    let lock = SpinLock()
    lock.warm(as: ours)
    lock.withLock {}
    #expect(lock.takes(as: ours) == .exclusive)
  }

  @Test func `a lock that two use in turn is biased to neither`() {
    let lock = SpinLock()
    for _ in 0..<SpinLock.limit {
      #expect(lock.takes(as: ours) == .exclusive)
      #expect(lock.takes(as: theirs) == .exclusive)
    }
  }

  @Test func `no lock is biased to code that runs on no scheduler`() {
    let lock = SpinLock()
    for _ in 0..<2 { lock.warm(as: .none) }
    #expect(lock.takes(as: .none) == .exclusive)
    #expect(lock.takes(as: ours) == .exclusive)
  }

  @Test func `who ends a bias waits until its owner is outside`() {
    let shared = Shared()
    shared.lock.warm(as: ours)
    let hold = shared.lock.lock(as: ours)
    #expect(hold == .biased)
    let group = DispatchGroup()
    DispatchQueue.global().async(group: group) {
      shared.lock.withLock { shared.wasInside.store(true, ordering: .relaxed) }
    }
    // The other has the word, and must not get past us.
    while shared.lock.owner.load(ordering: .acquiring) != SpinLock.shared {}
    #expect(!shared.hasEntered)
    shared.lock.unlock(hold)
    group.wait()
    #expect(shared.hasEntered)
  }

  @Test func `locks and channels of one queue need no atomic exchange`() throws {
    let (mutex, channel) = (FairMutex(), Channel<Int>(.bounded(8)))
    let job = co_launch(on: DispatchQueue(label: "bias")) {
      for value in 0..<Int(SpinLock.limit) {
        try mutex.withLock {}
        try channel.send(value)
        _ = try channel.receive()
      }
    }
    try job.wait()
    #expect(mutex.permit.pointee.lock.word.load(ordering: .acquiring) == 2)
    #expect(channel.lock.word.load(ordering: .acquiring) == 2)
    // From here, off every scheduler.
    #expect(mutex.tryLock())
    mutex.unlock()
    #expect(channel.trySend(1) == .sent)
    #expect(channel.count == 1)
    #expect(mutex.permit.pointee.lock.word.load(ordering: .acquiring) == 0)
    #expect(channel.lock.word.load(ordering: .acquiring) == 0)
  }
}

private final class Shared: Sendable {
  let lock = SpinLock()
  let wasInside = Atomic(false)
  var hasEntered: Bool { wasInside.load(ordering: .relaxed) }
}

extension SpinLock {
  fileprivate borrowing func takes(as key: LockKey) -> LockHold {
    let hold = lock(as: key)
    unlock(hold)
    return hold
  }

  fileprivate borrowing func warm(as key: LockKey) { for _ in 0..<Self.limit { _ = takes(as: key) } }
}
