import CoroutineTesting
import Synchronization
import Testing

@testable import Coroutine

/// An owner's number is never used again, though its address is.
@Suite("Owners of locks", .timeLimit(.minutes(10)))
struct LockOwnerTests {
  /// Leaves locks behind, held by coroutines that have ended, and lets others wait for them.
  private func outcomes() throws -> [String] {
    var seen: [String] = []
    for _ in 0..<20 {
      let (mutex, lock) = (FairMutex(), FairReadWriteLock())
      try co_launch {
        try mutex.lock()
        try lock.lockWrite()
      }
      .join()
      let waits: [@Sendable () throws -> Void] = [
        { try mutex.lock() }, { try lock.lockRead() }, { try lock.lockWrite() }, { try co_select { mutex.onLock {} } },
      ]
      for wait in waits {
        seen.append(try co_launch { outcome { try co_timeout(.milliseconds(1)) { try wait() } } }.join())
      }
    }
    return seen
  }

  @Test(.inWorlds) func `in a world a coroutine is never taken for one that has ended`() throws {
    #expect(Set(try outcomes()) == ["TimeoutError"])
  }

  @Test(.tags(.realClock)) func `a coroutine is never taken for one that has ended`() async throws {
    #expect(Set(try await onSerialQueue { try outcomes() }) == ["TimeoutError"])
  }

  @Test func `a coroutine of a world is never taken for one of another world`() throws {
    let mutex = FairMutex()
    try World().run { try mutex.lock() }
    try World().run {
      #expect(outcome { try co_timeout(.milliseconds(1)) { try mutex.lock() } } == "TimeoutError")
    }
  }

  @Test func `a thread is never taken for one that has ended`() async throws {
    let numbers = Locked<Set<UInt>>([])
    for _ in 0..<20 { try await onOwnThread { numbers.withLock { _ = $0.insert(OwnerNumber.ofThread) } } }
    #expect(numbers.current.count == 20)
  }

  @Test func `a coroutine has one number, also in the bodies that it steps`() async throws {
    let numbers = try await onSerialQueue {
      let mutex = FairMutex()
      var numbers: [UInt] = []
      func note() {
        #expect(mutex.tryLock())
        numbers.append(mutex.owner.load(ordering: .relaxed))
        mutex.unlock()
      }
      note()
      let generator = co_sequence(of: Int.self) { yield in
        note()
        try yield(1)
        let inner = co_sequence(of: Int.self) { _ in note() }
        _ = inner.next()
      }
      _ = generator.next()
      note()
      _ = generator.next()
      return numbers
    }
    #expect(numbers.count == 4 && Set(numbers).count == 1)
    #expect(numbers.allSatisfy { $0 & OwnerNumber.mayStep == 0 && $0 != OwnerNumber.ofThread & ~OwnerNumber.mayStep })
  }

  @Test func `a dump names the owner, which has locked in a body`() async throws {
    let dump = try await onSerialQueue {
      let (mutex, row) = (FairMutex(), Queueing())
      let holder = co_launch(name: "holder") {
        let generator = co_sequence(of: Int.self) { yield in try mutex.withLock { try waitForCancellation() } }
        _ = generator.next()
      }
      try co_yield()
      let waiter = try row.enqueue("waits") { try mutex.withLock {} }
      defer {
        holder.cancel()
        _ = try? waiter.join()
      }
      return dumpOfOwnQueue()
    }
    #expect(dump.contains(/held by #[0-9]+ "holder"/), "\(dump)")
  }
}
