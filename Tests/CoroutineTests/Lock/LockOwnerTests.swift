import CoroutineTesting
import Synchronization
import Testing

@testable import Coroutine

/// An owner's number is never used again, though its address is.
@Suite("Owners of locks", .timeLimit(.minutes(5)))
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

  @Test func `coroutines, threads and bodies have different numbers`() async throws {
    let kinds = try await onSerialQueue {
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
        note()
        let inner = co_sequence(of: Int.self) { _ in note() }
        _ = inner.next()
      }
      _ = generator.next()
      note()
      _ = generator.next()
      return numbers
    }
    #expect(kinds[0] == kinds[2] && kinds[1] == kinds[3])
    #expect(Set(kinds).count == 3)
    #expect(kinds.allSatisfy { $0 & OwnerNumber.mayStep == 0 })
  }

  @Test func `a body is forgotten at its end`() async throws {
    try await onSerialQueue {
      let (outer, inner) = (FairMutex(), FairMutex())
      for how in ["close", "return", "throw", "delegate", "release"] {
        var generator: Generator<Int, Never, Void>? = co_sequence(of: Int.self) { yield in
          try outer.withLock { _ = try yield(1) }
          let second = co_sequence(of: Int.self) { yield in try inner.withLock { _ = try yield(2) } }
          if how == "delegate" { try yield.all(of: second) } else { for number in second { try yield(number) } }
          if how == "throw" { throw Oops("end") }
        }
        #expect(generator?.next() == 1)
        var numbers = [outer.owner.load(ordering: .relaxed)]
        #expect(generator?.next() == 2)
        numbers.append(inner.owner.load(ordering: .relaxed))
        #expect(numbers.allSatisfy { GeneratorRecord.isTracked($0) })
        if how == "close" { generator?.close() } else if how != "release" { #expect(generator?.next() == nil) }
        _ = generator?.failure
        generator = nil
        #expect(!numbers.contains { GeneratorRecord.isTracked($0) })
        #expect(outer.tryLock() && inner.tryLock())
        outer.unlock()
        inner.unlock()
      }
    }
  }

  @Test func `a dump names the owner`() async throws {
    let dump = try await onSerialQueue {
      let (mutex, row) = (FairMutex(), Queueing())
      let generator = co_sequence(of: Int.self) { yield in try mutex.withLock { _ = try yield(1) } }
      _ = generator.next()
      try row.enqueue("waits") { try mutex.withLock {} }
      defer { generator.close() }
      return dumpOfOwnQueue()
    }
    #expect(dump.contains("held by a generator's body"), "\(dump)")
  }
}
