import Dispatch
import Glibc
import Testing

@testable import Coroutine

private enum Bound { @TaskLocal static var value = 0 }
private let local = CoroutineLocal(default: 0)
private let size = StackSize.bytes(4 << 20)

private final class Counter {
  var count = 0
}

private func addOne(to number: inout Int) throws {
  try co_withStack(size) {
    try co_delay(.milliseconds(1))
    number += 1
  }
}

/// What holds in a plain call holds in co_withStack, wherever the body is called and whether it waits.
@Suite("A body on a larger stack", .timeLimit(.minutes(10)))
struct LargerStackTests {
  @Test func `has room for what the caller's stack has none for`() async throws {
    let isWhole = try await co_launch(stack: .bytes(64 << 10)) {
      try co_withStack(size) { goDeep(1_000) && goDeep(1_000) }
    }.value
    #expect(isWhole)
    // A sanitizer's frames are larger.
    let onThread = try await onOwnThread { try co_withStack(.bytes(16 << 20)) { goDeep(isSanitized ? 7_000 : 10_000) } }
    #expect(onThread)
  }

  @Test func `returns and throws to its caller, and may be nested`() async throws {
    let results = try await onCoroutine {
      [
        outcome { try co_withStack(size) { "a" } },
        outcome { try co_withStack(size) { () -> Int in throw Oops("b") } },
        outcome { try co_withStack(size) { try co_withStack(.bytes(1)) { try co_withStack(size) { "c" } } } },
        outcome {
          try co_withStack(size) {
            try co_yield()
            return try co_withStack(size) {
              try co_yield()
              throw Oops("d")
            }
          }
        },
        outcome { try co_withStack(.bytes(17 << 20)) { "e" } },
      ]
    }
    #expect(results == ["a", "Oops(b)", "c", "Oops(d)", "stackTooLarge"])
  }

  @Test func `sees the bindings of its caller, before and after a wait`() async throws {
    let seen = try await onCoroutine {
      try Bound.$value.withValue(5) {
        try local.withValue(6) {
          try co_withStack(size) {
            var seen = [Bound.value, local.value]
            try Bound.$value.withValue(7) {
              try co_delay(.milliseconds(1))
              seen += [Bound.value, local.value]
            }
            return seen + [Bound.value]
          } + [Bound.value, local.value]
        }
      }
    }
    #expect(seen == [5, 6, 7, 6, 5, 5, 6])
  }

  @Test func `sees the Task that calls it, and its task-locals`() async throws {
    let (value, isSame) = try Bound.$value.withValue(9) {
      let outside = withUnsafeCurrentTask { $0?.hashValue }
      return try co_withStack(size) {
        (Bound.value, outside != nil && withUnsafeCurrentTask { $0?.hashValue } == outside)
      }
    }
    #expect(value == 9 && isSame)
  }

  @Test func `an access to a property of the caller may last over a wait of the body`() async throws {
    let count = try await onCoroutine {
      let counter = Counter()
      try addOne(to: &counter.count)
      return counter.count
    }
    #expect(count == 1)
  }

  @Test(arguments: [true, false])
  func `a cancellation and a deadline outside reach the body's wait`(_ isDeadline: Bool) async throws {
    let seen = try await onCoroutine {
      var seen: [String] = []
      let hasBegun = Flag()
      let job = co_launch {
        var seen: [String] = []
        hasBegun.raise()
        func wait() throws {
          try co_withStack(size) {
            do { try co_delay(.seconds(3_600)) } catch {
              seen.append(name(of: error))
              throw error
            }
          }
        }
        seen.append(outcome { if isDeadline { try co_timeout(.milliseconds(5), wait) } else { try wait() } })
        return seen
      }
      while !hasBegun.isRaised { try co_yield() }
      try co_delay(.milliseconds(5))
      if !isDeadline { job.cancel() }
      seen = try co_shield { try job.join() }
      return seen
    }
    #expect(seen == ["CancellationError", isDeadline ? "TimeoutError" : "CancellationError"])
  }

  @Test func `a lock belongs to the coroutine on both stacks`() async throws {
    let seen = try await onCoroutine {
      let (held, kept) = (FairMutex(), FairMutex())
      var seen = [try held.withLock { try co_withStack(size) { outcome { try held.lock() } } }]
      try held.lock()
      try co_withStack(size) {
        held.unlock()
        try kept.lock()
      }
      seen.append(outcome { try kept.lock() })
      kept.unlock()
      seen.append("\(held.tryLock() && kept.tryLock())")
      return seen
    }
    #expect(seen == ["wouldDeadlock", "wouldDeadlock", "true"])
  }

  // AddressSanitizer keeps variables in memory of its own, and their addresses say on which stack a frame is.
  @Test(.enabled(if: !isSanitized))
  func `in a generator's body, what it locks inside is the generator's, also in a deadline`() async throws {
    let seen = try await onCoroutine {
      let mutex = FairMutex()
      let numbers = Generator<Int, Never, String> { yield in
        try co_withStack(size) { try co_timeout(.seconds(3_600)) { try mutex.lock() } }
        let refused = outcome { try yield(1) }
        mutex.unlock()
        try yield(2)
        return refused
      }
      var seen: [String] = []
      while case .yielded(let number) = try numbers.step() { seen.append("\(number)") }
      if case .returned(let refused) = try numbers.step() { seen.append(refused) }
      return seen
    }
    #expect(seen == ["2", "yieldInsideScope"])
  }

  @Test func `a generator may be stepped inside, and its body may use one`() async throws {
    let seen = try await onCoroutine {
      let outer = co_sequence(of: Int.self) { yield in
        let inner = try co_withStack(size) {
          let numbers = co_sequence(of: Int.self) { yield in
            try yield(1)
            try co_yield()
            try yield(2)
          }
          return Array(numbers)
        }
        for number in inner { try yield(number) }
      }
      return Array(outer)
    }
    #expect(seen == [1, 2])
  }

  @Test func `a yield inside of it ends the process with a sentence`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let numbers = co_sequence(of: Int.self) { yield in _ = try co_withStack(size) { try yield(1) } }
      _ = numbers.next()
    }
    let words = String(decoding: died?.standardErrorContent ?? [], as: UTF8.self)
    #expect(words.contains("not inside of co_withStack"), "\(words)")
  }

  @Test func `a Task's part that waits inside of it continues on another thread`() async throws {
    let queue = DispatchQueue(label: "elsewhere")
    let isSame = try await co_launch { () -> Bool in
      // Started on this coroutine's stack: what waits in there parks both.
      let task = Task.immediate { () -> Bool in
        func hash() -> Int? { withUnsafeCurrentTask { $0?.hashValue } }
        let before = hash()
        let after = try? co_withStack(size) { () throws -> Int? in
          try co_delay(.milliseconds(1))
          try co_switch(to: queue)
          try co_delay(.milliseconds(1))
          return hash()
        }
        return before != nil && after == before && hash() == before
      }
      return try co_await { await task.value }
    }.value
    #expect(isSame)
  }

  @Test func `the walk of a parked body ends in the coroutine's own frames`() async throws {
    guard !isSanitized else { return }
    let gate = Gate()
    let job = co_launch(name: "on two stacks") { try co_withStack(size) { try gate.pass() } }
    while !job.isParked { await Task.yield() }
    let found = CoroutineRuntime.snapshot(stacks: true).coroutines.first { $0.name == "on two stacks" }
    let plain = co_launch(name: "on one stack") { try gate.pass() }
    while !plain.isParked { await Task.yield() }
    let other = CoroutineRuntime.snapshot(stacks: true).coroutines.first { $0.name == "on one stack" }
    #expect(found?.isTorn == false)
    #expect((found?.stack.count ?? 0) > (other?.stack.count ?? 0))
    #expect(found?.stack.last == other?.stack.last)
    gate.open()
    try await job.value
    try await plain.value
  }

  /// In a process of its own, because the number is that of the process.
  @Test func `costs no memory of its own after it`() async {
    await #expect(processExitsWith: .success) {
      try await onCoroutine {
        try co_withStack(size) {}
        let before = CoroutineRuntime.metrics.stacksInUse
        for _ in 0..<1_000 { try co_withStack(size) {} }
        #expect(CoroutineRuntime.metrics.stacksInUse <= before)
      }
    }
  }
}

/// What is said of the end of a process whose code was on a second stack.
@Suite("A fault on a second stack", .timeLimit(.minutes(10)))
struct SecondStackFaultTests {
  enum Wait: String, CaseIterable, Codable, Sendable {
    case none, yield, delay, queue, blocking

    func callAsFunction() throws {
      switch self {
      case .none: break
      case .yield: try co_yield()
      case .delay: try co_delay(.milliseconds(1))
      case .queue: try co_switch(to: DispatchQueue(label: "other"))
      case .blocking: try co_blocking { sched_yield() }
      }
    }
  }

  @Test(arguments: Wait.allCases)
  func `an overflow names the coroutine and the larger stack, whatever the body has waited for`(_ wait: Wait) async {
    let died = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) { [wait] in
      _ = try await co_launch(name: "deep diver", stack: .bytes(64 << 10)) {
        try co_withStack(.bytes(1 << 20)) {
          try wait()
          return descendForEver(1 << 40)
        }
      }.value
    }
    let words = String(decoding: died?.standardErrorContent ?? [], as: UTF8.self)
    #expect(words.contains(/coroutine "deep diver" \(id \d+\) overflowed its stack of 1 MiB/), "\(words)")
    #expect(words.contains("Give it a larger one: co_withStack(.bytes(1 << 22))"), "\(words)")
  }

  @Test(arguments: Wait.allCases)
  func `an overflow of a generator's body is reported, whatever the body has waited for`(_ wait: Wait) async {
    let died = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) { [wait] in
      _ = try await co_launch(name: "consumer", stack: .bytes(64 << 10)) {
        let numbers = Generator<Int, Never, Int>(stack: .bytes(1 << 20)) { _ in
          try wait()
          return descendForEver(1 << 40)
        }
        _ = try numbers.step()
      }.value
    }
    let words = String(decoding: died?.standardErrorContent ?? [], as: UTF8.self)
    #expect(words.contains(/coroutine "generator" \(id \d+\) overflowed its stack of 1 MiB/), "\(words)")
    #expect(words.contains("The fault is in its guard."), "\(words)")
  }

  @Test func `a trap names the coroutine, and has the frames of both stacks`() async {
    guard !isSanitized else { return }
    func frames(_ result: ExitTest.Result?) -> Int {
      let words = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
      let line = words.split(separator: "\n").first { $0.hasPrefix("coroutine \"trapper\" (id ") } ?? ""
      return line.components(between: "; frames", and: "; images")
    }
    let plain = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      setenv("SWIFT_BACKTRACE", "enable=no", 1)
      _ = try await co_launch(name: "trapper") { [Int]()[Int(getpid())] }.value
    }
    let larger = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      setenv("SWIFT_BACKTRACE", "enable=no", 1)
      _ = try await co_launch(name: "trapper") {
        try co_withStack(.bytes(1 << 20)) {
          try co_yield()
          return [Int]()[Int(getpid())]
        }
      }.value
    }
    #expect(frames(plain) > 2)
    #expect(frames(larger) > frames(plain))
  }

  @Test func `an overflow of a thread of co_blocking is reported with the thread's name and its stack`() async {
    let died = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      _ = try await co_launch { try co_blocking { descendForEver(1 << 40) } }.value
    }
    let words = String(decoding: died?.standardErrorContent ?? [], as: UTF8.self)
    #expect(words.contains(/overflowed the stack of its thread, co-blocking-\d+, which has 8 MiB/), "\(words)")
  }
}

extension Substring {
  /// The number of words between two texts.
  fileprivate func components(between first: String, and last: String) -> Int {
    guard let start = firstRange(of: first), let end = firstRange(of: last) else { return 0 }
    return self[start.upperBound..<end.lowerBound].split(separator: " ").count
  }
}
