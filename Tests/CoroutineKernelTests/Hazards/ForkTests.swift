import CCoroutine
import CCoroutineRuntime
import CTestSupport
import Dispatch
import Foundation
import Glibc
import Synchronization
import Testing

@testable import Coroutine

private let hasThreadSanitizer = cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue != 0

/// The sum of what a new generator yields.
private func generatorsWork() -> Bool {
  let squares = co_sequence(of: Int.self) { yield in
    for value in 1...4 { try yield(value * value) }
  }
  return squares.reduce(0, +) == 30
}

/// Everything that ends a forked child of this process.
private let attempts: [@Sendable () throws -> Void] = [
  { _ = try co_launch { 1 }.blockingWait() },
  { _ = try co_launch(on: DispatchQueue(label: "child")) { 1 }.blockingWait() },
  { _ = try co_launch(start: .immediate) { 1 }.blockingWait() },
  { _ = try co_launch(start: .lazy) { 1 }.blockingWait() },
  { try co_delay(.milliseconds(1)) },
  { try co_yield() },
  {
    let (promise, resolver) = Promise<Int>.pending()
    defer { withExtendedLifetime(resolver) {} }
    _ = try promise.blockingWait()
  },
  { _ = try Promise<Int>.task { 1 }.blockingWait() },
  { _ = try inherited.withLock { $0 }?.blockingWait() },
]

/// Makes each attempt in a child; returns the number of the first one that has not ended its child by a trap and the
/// sentence, or 0.
private func firstNotRefused() -> Int32 {
  for (index, attempt) in attempts.enumerated() {
    var ends: [Int32] = [-1, -1]
    precondition(pipe(&ends) == 0)
    let child = cts_fork(30)
    if child == 0 {
      guard generatorsWork() else { _exit(1) }
      dup2(ends[1], STDERR_FILENO)
      // Without Swift's backtrace, which may take longer than the alarm.
      for number in [SIGILL, SIGTRAP, SIGABRT] { signal(number, SIG_DFL) }
      try? attempt()
      _exit(0)
    }
    close(ends[1])
    var (words, byte): ([UInt8], UInt8) = ([], 0)
    while read(ends[0], &byte, 1) == 1 { words.append(byte) }
    close(ends[0])
    let answer = cts_end_of(child)
    // Not by the alarm.
    let isRefused = answer < 0 && answer != -SIGALRM && answer != -1_000
    let text = String(decoding: words, as: UTF8.self)
    if !isRefused || !text.contains("call exec or _exit in the child") { return Int32(index + 1) }
  }
  return 0
}

private func firstNotRefusedWhenQuiet() -> Int32 {
  while !cts_may_fork() { sched_yield() }
  return firstNotRefused()
}

/// A job of the parent that has not ended.
private let inherited = Mutex<Job<Void>?>(nil)

/// Launches `inherited`, and returns when every other thread of the process sleeps: this test is about the locks of
/// Coroutine, and not about those that other code may hold at a fork.
private func launchInherited() throws {
  // Objects that are created at the first use are created here.
  try co_launch { try co_delay(.milliseconds(1)) }.blockingWait()
  // On queues of their own: while a shared worker is busy, the watchdog's thread wakes every two milliseconds.
  inherited.withLock { $0 = co_launch(on: DispatchQueue(label: "inherited")) { try co_delay(.seconds(1000)) } }
  while !CoroutineRuntime.dump().contains("waiting") || !cts_may_fork() { sched_yield() }
}

/// Attaches a handler on a queue and one that follows a timer, and sets a timer of Dispatch; returns the number of the
/// first one that ran, or 0.
private func firstHandlerThatRan() -> Int32 {
  let queue = DispatchQueue(label: "child")
  let ran = (0..<3).map { _ in Flag() }
  let settled = Promise<Int>.value(1).then(on: queue) { _ in ran[0].raise() }
  let late = Promise<Void>.after(.milliseconds(1)).then(on: queue) { ran[1].raise() }
  queue.async { ran[2].raise() }
  RealClock.block(for: .milliseconds(100))
  withExtendedLifetime((settled, late)) {}
  return Int32((ran.firstIndex { $0.isRaised } ?? -1) + 1)
}

/// Taken by a thread of the parent for ever.
private let orphaned = SpinLock()

// ThreadSanitizer ends a child of many threads.
@Suite("After a fork", .enabled(if: !hasThreadSanitizer))
struct ForkTests {
  @Test("A forked child steps generators, whatever the parent's other threads were doing")
  func generators() async {
    await #expect(processExitsWith: .success) {
      // What both sides use is made before: Swift's runtime makes types under locks of its own.
      precondition(generatorsWork())
      let isOver = Flag()
      let others = DispatchGroup()
      for _ in 0..<3 {
        DispatchQueue.global().async(group: others) {
          while !isOver.isRaised {
            _ = generatorsWork()
            _ = try? co_launch { generatorsWork() }.blockingWait()
          }
        }
      }
      for round in 0..<200 {
        let answer = cts_in_child(30, { _ in generatorsWork() ? 0 : 1 }, nil)
        #expect(answer == 0, "round \(round)")
        if answer != 0 { break }
      }
      isOver.raise()
      others.wait()
    }
  }

  @Test("A forked child that launches, or that waits, ends with a sentence, steps generators, and the parent goes on")
  func refusals() async {
    await #expect(processExitsWith: .success) {
      try launchInherited()
      let answer = firstNotRefused()
      #expect(answer == 0)
      let launched = try synchronously { try co_launch { 1 }.blockingWait() }
      #expect(launched == 1)
    }
  }

  @Test("A coroutine that forks continues in the parent, and the child is outside any coroutine")
  func fromCoroutine() async {
    await #expect(processExitsWith: .success) {
      try launchInherited()
      // On a queue: while a shared worker is busy, the watchdog's thread wakes every two milliseconds.
      for isInGenerator in [false, true] {
        let job = co_launch(on: DispatchQueue(label: "forks")) {
          let forks = co_sequence(of: Int32.self) { yield in try yield(firstNotRefusedWhenQuiet()) }
          let answer = isInGenerator ? forks.next() : firstNotRefusedWhenQuiet()
          try co_yield()
          return answer
        }
        let answer = try synchronously { try job.blockingWait() }
        #expect(answer == 0)
      }
    }
  }

  // A handler that ran would need some time to be seen.
  @Test("A forked child that attaches handlers and sets timers goes on, and none of them runs", .tags(.realClock))
  func handlers() async {
    await #expect(processExitsWith: .success) {
      try launchInherited()
      let answer = cts_in_child(30, { _ in firstHandlerThatRan() }, nil)
      #expect(answer == 0)
    }
  }

  @Test("A forked child that returns from its parent's coroutine ends with a sentence, and the parent goes on")
  func returning() async {
    let end = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      try launchInherited()
      let job = co_launch(on: DispatchQueue(label: "forks")) { () -> Int32 in
        while !cts_may_fork() { sched_yield() }
        return cts_fork(30)
      }
      let child = try synchronously { try job.blockingWait() }
      let answer = cts_end_of(child)
      // Ended by a trap, and not by the alarm.
      precondition(answer < 0 && answer != -SIGALRM && answer != -1_000, "\(answer)")
    }
    #expect(end?.said("a forked child has returned from the body of its parent's coroutine") == true)
  }

  @Test("A forked child that needs a spin lock of its parent's thread ends with a sentence")
  func orphanedSpinLock() async {
    let end = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      let isTaken = DispatchSemaphore(value: 0)
      DispatchQueue(label: "holder").async {
        orphaned.lock()
        isTaken.signal()
        while true { sleep(1) }
      }
      isTaken.wait()
      while !cts_may_fork() { sched_yield() }
      let answer = cts_in_child(200, { _ in orphaned.withLock { 0 } }, nil)
      // Ended by a trap, and not by the alarm.
      precondition(answer < 0 && answer != -SIGALRM && answer != -1_000, "\(answer)")
    }
    #expect(end?.said("a forked child has used something of Coroutine that a thread of its parent was using") == true)
  }

  @Test("A program that a coroutine starts by posix_spawn or Process runs, and coroutines go on in the parent")
  func spawning() async {
    await #expect(processExitsWith: .success) {
      try launchInherited()
      let statuses = try synchronously {
        try co_launch(on: DispatchQueue(label: "spawns")) { () -> [Int32] in
          let spawned = try #require(spawn("/bin/sh", "-c", "exit 7"))
          let byHand: Int32 = try co_blocking { cts_end_of(spawned) }
          let byFoundation: Int32 = try co_suspend { (done: Resumer<Int32>) in
            let process = Process()
            process.executableURL = URL(filePath: "/bin/sh")
            process.arguments = ["-c", "exit 8"]
            process.terminationHandler = { done.resume($0.terminationStatus) }
            do { try process.run() } catch { done.fail(error) }
          }
          try co_delay(.milliseconds(1))
          return [byHand, byFoundation, Int32(cco_runtime.forked), try co_launch { 9 }.join()]
        }
        .blockingWait()
      }
      precondition(statuses == [7, 8, 0, 9], "\(statuses)")
      // Without LeakSanitizer's look at the end: Foundation keeps a Process that has ended.
      _exit(EXIT_SUCCESS)
    }
  }
}
