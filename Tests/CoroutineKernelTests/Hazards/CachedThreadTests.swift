import Coroutine
import Dispatch
import Glibc
import Synchronization
import Testing

/// The two threads of a test.
///
/// A coroutine goes from the first to the second.
private struct Threads: Sendable {
  let first = Loop()
  let second = Loop()
  let hostOfFirst: HostedScheduler
  let hostOfSecond: HostedScheduler
  let isAbout = DispatchSemaphore(value: 0)
  let hasLocked = DispatchSemaphore(value: 0)

  init() { (hostOfFirst, hostOfSecond) = (HostedScheduler(first), HostedScheduler(second)) }

  /// Makes the first thread lock what the caller, on the second one, holds for some time more.
  func letFirstLock(_ lock: @escaping @Sendable () -> Void) {
    let thread = Locked<pid_t>(0)
    first.execute {
      thread.current = threadID()
      isAbout.signal()
      lock()
      hasLocked.signal()
    }
    isAbout.wait()
    // On a busy machine the thread may take long to come to the lock. It sleeps when it waits for it.
    repeat { RealClock.block(for: .milliseconds(100)) } while !isAsleep(thread.current)
  }

  func run(_ body: @escaping @Sendable (Threads) throws -> Void) throws {
    try co_launch(on: hostOfFirst) { try body(self) }.blockingWait()
    hasLocked.wait()
  }
}

private final class Guarded: Sendable {
  let count = Mutex(0)
  /// A function of its own, which does not wait.
  @inline(never)
  func withCount(_ body: (inout Int) -> Void) { count.withLock { body(&$0) } }
}

// The loop of every server, three times: lock, wait, lock. Not inlined, because the test is about one frame. In the
// second round the coroutine is on another thread, and its first thread wants the lock that it holds.

@inline(never)
private func lockAndWait(_ guarded: Guarded, _ threads: Threads) throws {
  for round in 0..<2 {
    guarded.count.withLock {
      $0 += 1
      if round == 1 { threads.letFirstLock { guarded.count.withLock { $0 += 1 } } }
    }
    try co_switch(to: threads.hostOfSecond)
  }
}

@inline(never)
private func lockElsewhereAndWait(_ guarded: Guarded, _ threads: Threads) throws {
  for round in 0..<2 {
    guarded.withCount {
      $0 += 1
      if round == 1 { threads.letFirstLock { guarded.withCount { $0 += 1 } } }
    }
    try co_switch(to: threads.hostOfSecond)
  }
}

@inline(never)
private func lockAndWait(_ count: ThreadMutex<Int>, _ threads: Threads) throws {
  for round in 0..<2 {
    count.withLock {
      $0 += 1
      if round == 1 { threads.letFirstLock { count.withLock { $0 += 1 } } }
    }
    try co_switch(to: threads.hostOfSecond)
  }
}

/// Hazard 18: an optimised function keeps the address of a thread-local over its waits.
@Suite("Code of a program that keeps the address of a thread-local", .timeLimit(.minutes(10)))
struct CachedThreadTests {
  // If this fails, the compiler reads the address anew, or Mutex is not inlined any more: then the hazard is over. Real
  // time, here and below, because other threads than those of a world lock.
  @Test(.tags(.realClock), .enabled(if: !_isDebugAssertConfiguration()))
  func `a Mutex in a function that waits ends the process, although it is never held over a wait`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let guarded = Guarded()
      try synchronously { try Threads().run { try lockAndWait(guarded, $0) } }
    }
    #expect(died?.said("Recursive call to lock Mutex") == true)
  }

  @Test(.tags(.realClock))
  func `a Mutex in a function of its own, which does not wait, knows its thread`() async {
    await #expect(processExitsWith: .success) {
      let guarded = Guarded()
      try synchronously { try Threads().run { try lockElsewhereAndWait(guarded, $0) } }
      precondition(guarded.count.withLock { $0 } == 3)
    }
  }

  @Test(.tags(.realClock))
  func `a ThreadMutex in a function that waits knows its thread`() async {
    await #expect(processExitsWith: .success) {
      let count = ThreadMutex(0)
      try synchronously { try Threads().run { try lockAndWait(count, $0) } }
      precondition(count.withLock { $0 } == 3)
    }
  }
}
