import CCoroutine
import CTestSupport
import Coroutine
import Dispatch
import Synchronization
import Testing

import Glibc

private let hasThreadSanitizer = cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue != 0

/// The sum of what a new generator yields.
private func generatorsWork() -> Bool {
  let squares = co_sequence(of: Int.self) { yield in
    for value in 1...4 { try yield(value * value) }
  }
  return squares.reduce(0, +) == 30
}

/// What a forked child is refused; the number of the first that was not, 0 for none.
private func firstNotRefused() -> Int32 {
  let attempts: [() throws -> Void] = [
    { _ = try co_launch { 1 }.wait() },
    { _ = try co_launch(on: DispatchQueue(label: "child")) { 1 }.wait() },
    { _ = try co_launch(start: .immediate) { 1 }.wait() },
    { _ = try co_launch(start: .lazy) { 1 }.wait() },
    { try co_delay(.milliseconds(1)) },
    { try co_yield() },
    {
      let (promise, resolver) = Promise<Int>.pending()
      defer { withExtendedLifetime(resolver) {} }
      _ = try promise.wait()
    },
    { _ = try inherited.withLock { $0 }?.wait() },
  ]
  for (index, attempt) in attempts.enumerated() where outcome(attempt) != "afterFork" { return Int32(index + 1) }
  return generatorsWork() ? 0 : 100
}

/// A job of the parent that has not ended.
private let inherited = Mutex<Job<Void>?>(nil)

/// Launches `inherited`, and returns when every other thread of the process sleeps.
///
/// A thread that runs may hold a lock of Swift's runtime or of Dispatch, which would stay locked in a child; this is about the
/// locks of Coroutine.
private func launchInherited() throws {
  // What is made at the first use is made here.
  try co_launch { try co_delay(.milliseconds(1)) }.wait()
  inherited.withLock { $0 = co_launch { try co_delay(.seconds(1000)) } }
  while !CoroutineRuntime.dump().contains("waiting") || !otherThreadsSleep() { sched_yield() }
}

private func otherThreadsSleep() -> Bool {
  guard let tasks = opendir("/proc/self/task") else { return true }
  defer { closedir(tasks) }
  // The calling thread is the one that runs.
  var running = 0
  while let entry = readdir(tasks) {
    let name = withUnsafePointer(to: &entry.pointee.d_name) {
      String(cString: UnsafeRawPointer($0).assumingMemoryBound(to: CChar.self))
    }
    guard let file = fopen("/proc/self/task/\(name)/stat", "r") else { continue }
    defer { fclose(file) }
    var line = [CChar](repeating: 0, count: 512)
    guard fgets(&line, 512, file) != nil else { continue }
    // "12 (name) S …": the state follows the last parenthesis.
    let text = String(decoding: line.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    if let end = text.lastIndex(of: ")"), text[end...].dropFirst(2).first == "R" { running += 1 }
  }
  return running <= 1
}

// ThreadSanitizer ends a child of many threads.
@Suite("After a fork", .enabled(if: !hasThreadSanitizer))
struct ForkTests {
  @Test("A child steps generators, whatever its parent's other threads were doing at the fork")
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
            _ = try? co_launch { generatorsWork() }.wait()
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

  @Test("A child that launches, waits or joins gets an error that says so, at once")
  func refusals() async {
    await #expect(processExitsWith: .success) {
      CoroutineRuntime.onUnhandledError = { _, _ in }
      try launchInherited()
      let answer = cts_in_child(30, { _ in firstNotRefused() }, nil)
      #expect(answer == 0)
      // The parent goes on.
      let launched = try co_launch { 1 }.wait()
      #expect(launched == 1)
    }
  }

  @Test("A coroutine that forks goes on in the parent, and its child is outside of any coroutine")
  func fromCoroutine() async {
    await #expect(processExitsWith: .success) {
      CoroutineRuntime.onUnhandledError = { _, _ in }
      try launchInherited()
      let answer = try co_launch {
        while !otherThreadsSleep() { sched_yield() }
        let answer = cts_in_child(30, { _ in firstNotRefused() }, nil)
        try co_yield()
        return answer
      }
      .wait()
      #expect(answer == 0)
    }
  }

  @Test("The sentence says what may be done instead")
  func sentence() {
    #expect("\(CoroutineError.afterFork)".contains("call exec or _exit"))
  }
}
