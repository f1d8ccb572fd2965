import CLinux
import CTestSupport
import Glibc
import Testing

@testable import Coroutine

/// Each test runs in a process of its own, which the check ends.
@Suite(
  "A lock that is held for too long ends a debug build with a sentence",
  .enabled(if: cts_checks_allocations()),
  .timeLimit(.minutes(10))
)
struct LockCheckTests {
  @Test func `an allocation under a spin lock`() async throws {
    let died = try #require(
      await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let lock = SpinLock()
        lock.lock()
        free(malloc(16))
        lock.unlock()
      }
    )
    #expect(says(died, "Coroutine: an allocation while the thread holds a spin lock; do it outside of the lock"))
  }

  @Test func `an array that grows under a spin lock`() async throws {
    let died = try #require(
      await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let lock = SpinLock()
        var values = [1]
        lock.lock()
        for value in 0..<100 { values.append(value) }
        lock.unlock()
        precondition(values.count == 101)
      }
    )
    #expect(says(died, "Coroutine: an allocation while the thread holds a spin lock"))
  }

  @Test func `a system call under a spin lock`() async throws {
    let died = try #require(
      await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let lock = SpinLock()
        lock.withLock { _ = clinux_can_make_timer() }
      }
    )
    #expect(says(died, "Coroutine: a system call while the thread holds a spin lock"))
  }

  @Test func `a lock that may sleep, under a spin lock`() async throws {
    let died = try #require(
      await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let lock = SpinLock()
        let inner = ThreadLock()
        lock.lock()
        inner.lock()
        inner.unlock()
        lock.unlock()
      }
    )
    #expect(says(died, "Coroutine: a ThreadLock, which may sleep while the thread holds a spin lock"))
  }

  @Test func `a switch under a spin lock`() async throws {
    let died = try #require(
      await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        try await co_launch {
          let lock = SpinLock()
          lock.lock()
          try co_delay(.milliseconds(1))
          lock.unlock()
        }.value
      }
    )
    #expect(says(died, "while the thread holds a spin lock"))
  }

  @Test func `a switch under a lock that may sleep`() async throws {
    let died = try #require(
      await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        try await co_launch {
          let lock = ThreadLock()
          lock.lock()
          try co_delay(.milliseconds(1))
          lock.unlock()
        }.value
      }
    )
    #expect(says(died, "Coroutine: a switch while the thread holds a ThreadLock"))
  }

  private func says(_ died: ExitTest.Result, _ sentence: String) -> Bool {
    String(decoding: died.standardErrorContent, as: UTF8.self).contains(sentence)
  }
}
