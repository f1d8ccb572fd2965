import CCoroutine
import CTestSupport
import Coroutine
import CoroutineTesting
import Dispatch
import Glibc
import Testing

private let hasThreadSanitizer = cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue != 0

/// A value that cannot be copied.
private struct Account: ~Copyable {
  var balance = 0
  let ended: Flag
  deinit { ended.raise() }
}

/// A class that is not Sendable: it can enter and leave a lock only by `sending`.
private final class Notes { var lines: [String] = [] }

private struct Overdrawn: Error, Equatable { let by: Int }

/// Taken by a thread of the parent for ever.
private let orphaned = ThreadMutex(0)

@Suite("A lock of threads", .timeLimit(.minutes(10)))
struct ThreadMutexTests {
  @Test func `a section returns the body's result, and changes the value`() {
    let mutex = ThreadMutex(1)
    let before = mutex.withLock { value in
      defer { value += 1 }
      return value
    }
    #expect(before == 1)
    #expect(mutex.withLock { $0 } == 2)
    #expect(mutex.withLockIfFree { $0 } == 2)
  }

  @Test func `the value may be one that cannot be copied, and lives as long as the lock`() {
    let ended = Flag()
    do {
      let mutex = ThreadMutex(Account(ended: ended))
      mutex.withLock { $0.balance += 7 }
      #expect(mutex.withLock { $0.balance } == 7)
      #expect(!ended.isRaised)
    }
    #expect(ended.isRaised)
  }

  @Test func `a value that is not Sendable goes in and comes out`() {
    let mutex = ThreadMutex(Notes())
    mutex.withLock { $0.lines.append("one") }
    let taken = mutex.withLock { notes in
      let old = notes
      notes = Notes()
      return old
    }
    #expect(taken.lines == ["one"])
    #expect(mutex.withLock { $0.lines.count } == 0)
  }

  @Test func `an error has the type that the body throws, and leaves the lock free`() {
    let mutex = ThreadMutex(0)
    do throws(Overdrawn) {
      try mutex.withLock { (_: inout sending Int) throws(Overdrawn) in throw Overdrawn(by: 3) }
      Issue.record("nothing was thrown")
    } catch {
      #expect(error.by == 3)
    }
    do throws(Overdrawn) {
      _ = try mutex.withLockIfFree { (_: inout sending Int) throws(Overdrawn) in throw Overdrawn(by: 4) }
      Issue.record("nothing was thrown")
    } catch {
      #expect(error.by == 4)
    }
    #expect(mutex.withLockIfFree { _ in true } == true)
  }

  @Test func `a defer can take it, in a coroutine that is cancelled too`() async {
    let mutex = ThreadMutex<[String]>([])
    let job = co_launch {
      defer { mutex.withLock { $0.append("over") } }
      try waitForCancellation()
    }
    job.cancel()
    #expect(await asyncOutcome { try await job.value } == "CancellationError")
    _ = try? await co_launch {
      defer { mutex.withLock { $0.append("over") } }
      try co_yield()
    }.value
    #expect(mutex.withLock { $0 }.last == "over")
  }

  @Test func `it excludes threads, coroutines and Tasks from one another`() async throws {
    let mutex = ThreadMutex(0)
    let rounds = 2_000
    let jobs = (0..<2).map { _ in
      co_launch {
        for _ in 0..<rounds {
          mutex.withLock { $0 += 1 }
          try co_yield()
        }
      }
    }
    await withTaskGroup { group in
      for _ in 0..<2 { group.addTask { for _ in 0..<rounds { mutex.withLock { $0 += 1 } } } }
      group.addTask {
        DispatchQueue.concurrentPerform(iterations: 2) { _ in
          var taken = 0
          while taken < rounds { if mutex.withLockIfFree({ $0 += 1 }) != nil { taken += 1 } }
        }
      }
    }
    for job in jobs { try await job.value }
    #expect(mutex.withLock { $0 } == 6 * rounds)
  }

  @Test func `withLockIfFree returns nil while another thread holds it, and the value afterwards`() {
    let mutex = ThreadMutex(1)
    let (holds, mayLeave, hasLeft) = (
      DispatchSemaphore(value: 0), DispatchSemaphore(value: 0), DispatchSemaphore(value: 0)
    )
    DispatchQueue(label: "holder").async {
      mutex.withLock { _ in
        holds.signal()
        mayLeave.wait()
      }
      hasLeft.signal()
    }
    holds.wait()
    #expect(mutex.withLockIfFree { $0 } == nil)
    mayLeave.signal()
    hasLeft.wait()
    #expect(mutex.withLockIfFree { $0 } == 1)
  }

  @Test func `a thread that finds it locked sleeps, and is woken by the holder`() {
    let mutex = ThreadMutex(0)
    let (sleeper, group) = (Locked<pid_t>(0), DispatchGroup())
    mutex.withLock { value in
      DispatchQueue(label: "sleeper").async(group: group) {
        sleeper.current = threadID()
        mutex.withLock { $0 += 10 }
      }
      while sleeper.current == 0 || !isAsleep(sleeper.current) { sched_yield() }
      value = 1
    }
    group.wait()
    #expect(mutex.withLock { $0 } == 11)
  }

  @Test func `a section inside of a section of the same lock ends the process`() async throws {
    let died = try #require(
      await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let mutex = ThreadMutex(0)
        mutex.withLock { _ in mutex.withLock { $0 += 1 } }
      }
    )
    #expect(died.said("A thread that holds a ThreadMutex locks it again. It is not recursive;"))
  }

  @Test func `an attempt inside of a section of the same lock ends the process`() async throws {
    let died = try #require(
      await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let mutex = ThreadMutex(0)
        mutex.withLockIfFree { _ in mutex.withLockIfFree { $0 += 1 } }
      }
    )
    #expect(died.said("A thread that holds a ThreadMutex locks it again."))
  }

  @Test func `two locks may be held at once`() {
    let (outer, inner) = (ThreadMutex(1), ThreadMutex(2))
    #expect(outer.withLock { one in inner.withLock { other in one + other } } == 3)
  }

  @Test(.inWorlds) func `in a world it is free at each step`() throws {
    let mutex = ThreadMutex(0)
    try co_scope { scope in
      for _ in 0..<4 {
        scope.launch {
          for _ in 0..<10 {
            #expect(mutex.withLockIfFree { $0 += 1 } != nil)
            try co_yield()
            mutex.withLock { $0 += 1 }
          }
        }
      }
    }
    #expect(mutex.withLock { $0 } == 80)
  }

  // ThreadSanitizer ends a child of many threads.
  @Test(.enabled(if: !hasThreadSanitizer))
  func `a forked child that needs what another thread has held ends; what its own thread holds, it leaves`() async {
    await #expect(processExitsWith: .success) {
      let own = ThreadMutex(1)
      while !cts_may_fork() { sched_yield() }
      let left = own.withLock { _ in cts_in_child(60, { _ in 0 }, nil) }
      precondition(left == 0 && own.withLock { $0 } == 1, "\(left)")

      let isTaken = DispatchSemaphore(value: 0)
      DispatchQueue(label: "holder").async {
        orphaned.withLock { _ in
          isTaken.signal()
          while true { sleep(1) }
        }
      }
      isTaken.wait()
      // It may look, and does not wait.
      while !cts_may_fork() { sched_yield() }
      let looked = cts_in_child(60, { _ in orphaned.withLockIfFree { _ in 1 } == nil ? 0 : 2 }, nil)
      precondition(looked == 0, "\(looked)")
      while !cts_may_fork() { sched_yield() }
      let code = cts_in_child(60, { _ in orphaned.withLock { _ in 0 } }, nil)
      // Ended by a trap, and not by the alarm.
      precondition(code < 0 && code != -SIGALRM && code != -1_000, "\(code)")
    }
  }
}
