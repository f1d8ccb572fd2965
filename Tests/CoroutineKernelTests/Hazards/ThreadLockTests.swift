import CCoroutine
import CTestSupport
import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

private let hasThreadSanitizer = cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue != 0

/// A lock and what it covers.
private final class Guarded: @unchecked Sendable {
  // Sound because `count` is accessed under the lock.
  let lock = ThreadLock()
  @exclusivity(unchecked) var count = 0
}

private final class SpinningLock: Sendable {
  let lock = SpinLock()
}

/// Taken by a thread of the parent for ever.
private let orphaned = Guarded()

@Suite("The lock that may sleep", .timeLimit(.minutes(10)))
struct ThreadLockTests {
  // A thread that holds the lock for longer than others spin makes them sleep.
  @Test(.tags(.realClock)) func `excludes other threads, whether they spin or sleep`() {
    let guarded = Guarded()
    DispatchQueue.concurrentPerform(iterations: 4) { thread in
      for round in 0..<2_000 {
        guarded.lock.withLock {
          let seen = guarded.count
          if round % 500 == thread { RealClock.block(for: .microseconds(500)) }
          guarded.count = seen + 1
        }
      }
    }
    #expect(guarded.lock.withLock { guarded.count } == 8_000)
  }

  // Real-time priorities are the administrator's, and may be taken from a container even so.
  @Test(.enabled(if: geteuid() == 0))
  func `a spin lock's holder goes on beside a thread of real-time priority on its processor`() async {
    await #expect(processExitsWith: .exitCode(7)) {
      var priority = sched_param(sched_priority: 10)
      let lock = SpinningLock()
      let (isHeld, isTried) = (Flag(), Flag())
      // Threads inherit the processor.
      guard cts_use_one_processor() == 0 else { exit(7) }
      _ = DetachedThread.start("holder") {
        lock.lock.withLock {
          isHeld.raise()
          while !isTried.isRaised { cco_relax() }
        }
      }
      while !isHeld.isRaised { sched_yield() }
      let before = sleeps(of: threadID())
      guard sched_setscheduler(0, SCHED_FIFO, &priority) == 0 else { exit(7) }
      isTried.raise()
      lock.lock.withLock {}
      // Without a sleep, the holder has what the kernel leaves to others: a twentieth of each second. The time that it
      // takes says nothing, because other processes use the processor as well.
      exit(sleeps(of: threadID()) > before ? 7 : 1)
    }
  }

  @Test func `wakes every sleeping thread in turn`() {
    let guarded = Guarded()
    let group = DispatchGroup()
    guarded.lock.lock()
    let sleepers = Locked<[pid_t]>([])
    for number in 0..<8 {
      DispatchQueue(label: "sleeper \(number)").async(group: group) {
        sleepers.withLock { $0.append(threadID()) }
        guarded.lock.withLock { guarded.count += 1 }
      }
    }
    while sleepers.current.count < 8 || !sleepers.current.allSatisfy(isAsleep) { sched_yield() }
    guarded.lock.unlock()
    group.wait()
    #expect(guarded.lock.withLock { guarded.count } == 8)
  }

  // ThreadSanitizer ends a child of many threads.
  @Test(.enabled(if: !hasThreadSanitizer))
  func `ends a forked child that waits for a thread of its parent`() async {
    await #expect(processExitsWith: .success) {
      let isTaken = DispatchSemaphore(value: 0)
      Thread.start {
        orphaned.lock.lock()
        isTaken.signal()
        while true { sleep(1) }
      }
      isTaken.wait()
      while !cts_may_fork() { sched_yield() }
      let code = cts_in_child(60, { _ in orphaned.lock.withLock { 0 } }, nil)
      // Ended by a trap, and not by the alarm.
      precondition(code < 0 && code != -SIGALRM && code != -1_000, "\(code)")
    }
  }

  @Test func `a thread that waits for long for a spin lock sleeps`() async throws {
    final class Held: Sendable { let value = SpinLock() }
    let lock = Held()
    // Taken past the check of debug builds, because this thread allocates meanwhile.
    lock.value.word.store(1, ordering: .relaxed)
    let waiter = Locked<pid_t>(0)
    let hasWaited = DispatchSemaphore(value: 0)
    startThread {
      waiter.withLock { $0 = threadID() }
      lock.value.lock()
      lock.value.unlock()
      hasWaited.signal()
    }
    // Not on a thread of the Tasks, of which there may be two for all tests. Yields are no sleeps for the kernel.
    try await onOwnThread {
      while sleeps(of: waiter.current) <= 20 { RealClock.block(for: .milliseconds(1)) }
      lock.value.word.store(0, ordering: .releasing)
      hasWaited.wait()
    }
  }
}

/// How often the thread has given up its processor to wait; 0 if there is no such thread.
private func sleeps(of thread: pid_t) -> Int {
  let key = "\nvoluntary_ctxt_switches:"
  let status = text(of: "/proc/self/task/\(thread)/status")
  return status.firstRange(of: key).flatMap { range in
    Int(status[range.upperBound...].drop { !$0.isNumber }.prefix { $0.isNumber })
  } ?? 0
}

private enum Thread {
  static func start(_ body: @escaping @Sendable () -> Void) { DispatchQueue(label: "holder").async(execute: body) }
}
