import Coroutine
import Dispatch
import Foundation
import Glibc
import Synchronization

// Programs of Swift Concurrency that use nothing of this library but where they say so, each with its outcome on
// Swift's own executor. TasksOnWorkersTests runs the same table on that, and on the worker pool.

/// A program and its outcome.
struct TaskBehaviour: Sendable {
  let name: String
  let outcome: String
  let run: @Sendable () async throws -> String

  init(_ name: String, _ outcome: String, _ run: @escaping @Sendable () async throws -> String) {
    self.name = name
    self.outcome = outcome
    self.run = run
  }

  /// Runs all of them one after the other, and returns those that differ, a line each.
  static func runAll() async -> [String] {
    var lines: [String] = []
    for behaviour in all {
      let seen = await asyncOutcome { try await behaviour.run() }
      if seen != behaviour.outcome { lines.append("\(behaviour.name): \(seen), and not \(behaviour.outcome)") }
    }
    return lines
  }

  static let all = order + isolation + structure + resumption + time + depth
}

/// A number that Tasks count up.
final class Tally: Sendable {
  private let count = Atomic<Int>(0)
  var value: Int { count.load(ordering: .acquiring) }
  func add() { count.wrappingAdd(1, ordering: .acquiringAndReleasing) }
}

// MARK: - Priorities

/// Without what those who await the Task have raised it to.
private var basePriority: UInt8 { Task.basePriority?.rawValue ?? 0 }

extension TaskBehaviour {
  fileprivate static let order: [TaskBehaviour] = [
    TaskBehaviour("priorities", "25 21 17 9") {
      var seen: [UInt8] = []
      for priority in [TaskPriority.high, .medium, .utility, .background] {
        seen.append(await Task(priority: priority) { basePriority }.value)
      }
      return seen.map(String.init).joined(separator: " ")
    },
    TaskBehaviour("a Task inherits the priority, a detached one does not, a child does", "25 21 25") {
      await Task(priority: .high) {
        let inherited = await Task { basePriority }.value
        let detached = await Task.detached(priority: .medium) { basePriority }.value
        async let child = basePriority
        return "\(inherited) \(detached) \(await child)"
      }.value
    },
    TaskBehaviour("a Task of high priority that awaits another escalates it", "escalated") {
      let low = Task(priority: .background) {
        while Task.currentPriority < .high { await Task.yield() }
        return "escalated"
      }
      return await Task(priority: .high) { await low.value }.value
    },
    TaskBehaviour("a Task whose priority rises while it waits for a thread runs once", "100") {
      let runs = Tally()
      for _ in 0..<100 {
        let low = Task(priority: .background) { runs.add() }
        low.escalatePriority(to: .high)
        await low.value
      }
      return "\(runs.value)"
    },
    TaskBehaviour("a Task that always yields keeps no Task of any priority from running", "ran") {
      let hasRun = Tally()
      let busy = Task(priority: .high) {
        while !Task.isCancelled { await Task.yield() }
      }
      await withTaskGroup(of: Void.self) { group in
        for priority in [TaskPriority.background, .utility, .medium, .high] {
          group.addTask(priority: priority) { hasRun.add() }
        }
      }
      busy.cancel()
      await busy.value
      return hasRun.value == 4 ? "ran" : "not all"
    },
    TaskBehaviour("two Tasks that always wake each other keep no other from running", "ran") {
      let (toFirst, wakeFirst) = AsyncStream.makeStream(of: Void.self)
      let (toSecond, wakeSecond) = AsyncStream.makeStream(of: Void.self)
      let first = Task { for await _ in toFirst { wakeSecond.yield() } }
      let second = Task { for await _ in toSecond { wakeFirst.yield() } }
      wakeFirst.yield()
      for _ in 0..<100 { await Task.detached(priority: .background) {}.value }
      wakeFirst.finish()
      wakeSecond.finish()
      await first.value
      await second.value
      return "ran"
    },
    TaskBehaviour("a Task that yields lets one run that is ready", "ran") {
      let isSet = Flag()
      let task = Task { isSet.raise() }
      while !isSet.isRaised { await Task.yield() }
      await task.value
      return "ran"
    },
  ]
}

// MARK: - Isolation

private actor Turnstile {
  private var trace = ""
  private var waiter: CheckedContinuation<Void, Never>?
  private(set) var value = 0

  func pass() async {
    trace += "a"
    await withCheckedContinuation { waiter = $0 }
    trace += "c"
  }

  func open() -> Bool {
    guard let waiter else { return false }
    trace += "b"
    self.waiter = nil
    waiter.resume()
    return true
  }

  func read() -> String { trace }
  func add() { value += 1 }
  nonisolated func assume() -> String { assumeIsolated { _ in "isolated" } }
  func checks() -> String {
    preconditionIsolated()
    return assume()
  }
}

@globalActor private actor Registry { static let shared = Registry() }

/// An executor on a queue of Dispatch.
private final class QueueExecutor: SerialExecutor, TaskExecutor {
  private let queue = DispatchQueue(label: "behaviour")
  private static let key = DispatchSpecificKey<Bool>()

  init() { queue.setSpecific(key: Self.key, value: true) }

  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    queue.async { job.runSynchronously(on: self.asUnownedSerialExecutor()) }
  }
  func asUnownedSerialExecutor() -> UnownedSerialExecutor { UnownedSerialExecutor(ordinary: self) }
  static var isCurrent: Bool { DispatchQueue.getSpecific(key: key) ?? false }
}

/// The same, as a preference of Tasks.
private final class PreferredExecutor: TaskExecutor {
  private let queue = DispatchQueue(label: "preferred")
  private static let key = DispatchSpecificKey<Bool>()

  init() { queue.setSpecific(key: Self.key, value: true) }

  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    queue.async { job.runSynchronously(on: self.asUnownedTaskExecutor()) }
  }
  static var isCurrent: Bool { DispatchQueue.getSpecific(key: key) ?? false }
}

private actor HomeBound {
  private let executor = QueueExecutor()
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
  func isHome() async -> Bool {
    let before = QueueExecutor.isCurrent
    await Task.yield()
    try? await Task.sleep(for: .milliseconds(1))
    return before && QueueExecutor.isCurrent
  }
}

/// The thread may be any: after `dispatchMain()` Dispatch's threads serve the main queue on Linux.
private func isInMainQueue() -> Bool { DispatchQueue.getSpecific(key: mainKey) ?? false }
private let mainKey: DispatchSpecificKey<Bool> = {
  let key = DispatchSpecificKey<Bool>()
  DispatchQueue.main.setSpecific(key: key, value: true)
  return key
}()

extension TaskBehaviour {
  fileprivate static let isolation: [TaskBehaviour] = [
    TaskBehaviour("an actor is reentrant where it waits", "abc") {
      let turnstile = Turnstile()
      let task = Task { await turnstile.pass() }
      while await !turnstile.open() { await Task.yield() }
      await task.value
      return await turnstile.read()
    },
    TaskBehaviour("an actor does one thing at a time", "20000") {
      let turnstile = Turnstile()
      await withTaskGroup(of: Void.self) { group in
        for _ in 0..<20 { group.addTask { for _ in 0..<1_000 { await turnstile.add() } } }
      }
      return "\(await turnstile.value)"
    },
    TaskBehaviour("isolation is checked by what is true", "isolated") { await Turnstile().checks() },
    TaskBehaviour("a global actor", "isolated") {
      await { @Registry in Registry.shared.assumeIsolated { _ in "isolated" } }()
    },
    TaskBehaviour("the main actor is the main queue, before and after a wait", "true true false") {
      let before = await MainActor.run { MainActor.assumeIsolated { isInMainQueue() } }
      let after = await Task { @MainActor in
        await Task.yield()
        try? await Task.sleep(for: .milliseconds(1))
        return isInMainQueue()
      }.value
      let outside = await Task.detached { isInMainQueue() }.value
      return "\(before) \(after) \(outside)"
    },
    TaskBehaviour("an actor with an executor stays on it", "true") { "\(await HomeBound().isHome())" },
    TaskBehaviour("a Task stays on the executor that it prefers, and a detached one does not", "true true false") {
      let executor = PreferredExecutor()
      return await Task(executorPreference: executor) {
        let before = PreferredExecutor.isCurrent
        await Task.yield()
        async let child = PreferredExecutor.isCurrent
        let (after, inChild) = (PreferredExecutor.isCurrent, await child)
        let detached = await Task.detached { PreferredExecutor.isCurrent }.value
        return "\(before && after) \(inChild) \(detached)"
      }.value
    },
    TaskBehaviour("an immediate Task begins on the caller's thread", "true") {
      let thread = pthread_self()
      return await Task.immediate { "\(pthread_equal(thread, pthread_self()) != 0)" }.value
    },
  ]
}

// MARK: - Structure

private enum Local { @TaskLocal static var word = "none" }

extension TaskBehaviour {
  fileprivate static let structure: [TaskBehaviour] = [
    TaskBehaviour("a group", "499500") {
      let sum = await withTaskGroup(of: Int.self) { group in
        for number in 0..<1_000 { group.addTask { number } }
        return await group.reduce(0, +)
      }
      return "\(sum)"
    },
    TaskBehaviour("a group that fails cancels the others, and throws the first error", "Oops(first) 3") {
      let cancelled = Tally()
      let seen = await asyncOutcome {
        try await withThrowingTaskGroup(of: Void.self) { group in
          for _ in 0..<3 {
            group.addTask {
              do { try await Task.sleep(for: .seconds(600)) } catch { cancelled.add() }
            }
          }
          group.addTask { throw Oops("first") }
          while try await group.next() != nil {}
        }
      }
      return "\(seen) \(cancelled.value)"
    },
    TaskBehaviour("a discarding group", "1000") {
      let count = Tally()
      await withDiscardingTaskGroup { group in
        for _ in 0..<1_000 { group.addTask { count.add() } }
      }
      return "\(count.value)"
    },
    TaskBehaviour("async let, also one that is left", "3 cancelled") {
      let seen = Locked("")
      func inner() async -> Int {
        async let one = 1
        async let two = 2
        async let left: Void = {
          do { try await Task.sleep(for: .seconds(600)) } catch { seen.withLock { $0 = "cancelled" } }
        }()
        return await one + two
      }
      let sum = await inner()
      return "\(sum) \(seen.withLock { $0 })"
    },
    TaskBehaviour("a cancelled sleep ends at once, with that error", "CancellationError true") {
      let task = Task {
        let error = await asyncOutcome { try await Task.sleep(for: .seconds(600)) }
        return "\(error) \(Task.isCancelled)"
      }
      task.cancel()
      return await task.value
    },
    TaskBehaviour("a cancellation handler runs on the canceller's thread, once", "1") {
      let count = Tally()
      let hasBegun = Flag()
      let task = Task {
        await withTaskCancellationHandler {
          hasBegun.raise()
          // Not only after Task.isCancelled: a handler whose operation has ended before it is called is not called.
          while !Task.isCancelled || count.value == 0 { await Task.yield() }
        } onCancel: {
          count.add()
        }
      }
      while !hasBegun.isRaised { await Task.yield() }
      task.cancel()
      task.cancel()
      await task.value
      return "\(count.value)"
    },
    TaskBehaviour("task-locals go to Tasks and children, and not to detached ones", "in in none in none") {
      let inside = await Local.$word.withValue("in") {
        let task = await Task { Local.word }.value
        async let child = Local.word
        let detached = await Task.detached { Local.word }.value
        let inChild = await child
        await Task.yield()
        return "\(task) \(inChild) \(detached) \(Local.word)"
      }
      return "\(inside) \(Local.word)"
    },
    TaskBehaviour("a stream", "499500 true") {
      let (stream, continuation) = AsyncStream.makeStream(of: Int.self)
      let hasEnded = Flag()
      continuation.onTermination = { _ in hasEnded.raise() }
      let producer = Task {
        for number in 0..<1_000 {
          continuation.yield(number)
          if number % 10 == 0 { await Task.yield() }
        }
        continuation.finish()
      }
      var sum = 0
      for await number in stream { sum += number }
      await producer.value
      return "\(sum) \(hasEnded.isRaised)"
    },
  ]
}

// MARK: - Continuations, and blocked threads

extension TaskBehaviour {
  fileprivate static let resumption: [TaskBehaviour] = [
    TaskBehaviour("a continuation that a thread resumes", "1") {
      await withCheckedContinuation { continuation in Thread.detachNewThread { continuation.resume(returning: "1") } }
    },
    TaskBehaviour("a continuation that a queue resumes", "2") {
      await withCheckedContinuation { continuation in
        DispatchQueue.global().async { continuation.resume(returning: "2") }
      }
    },
    TaskBehaviour("a continuation that a coroutine resumes, on the pool and on a queue", "34") {
      let first = await withCheckedContinuation { continuation in
        co_launch {
          try co_yield()
          continuation.resume(returning: "3")
        }
      }
      let second = await withCheckedContinuation { continuation in
        co_launch(on: DispatchQueue(label: "resumes")) { continuation.resume(returning: "4") }
      }
      return first + second
    },
    TaskBehaviour("a Task and coroutines that await each other", "7") {
      let job = co_launch { try co_await { try await co_launch { try co_await { 7 } }.value } }
      return "\(try await job.value)"
    },
    TaskBehaviour("ten thousand continuations that threads resume", "10000") {
      let sum = await withTaskGroup(of: Int.self) { group in
        let queue = DispatchQueue(label: "all")
        for _ in 0..<10_000 {
          group.addTask { await withCheckedContinuation { waiter in queue.async { waiter.resume(returning: 1) } } }
        }
        return await group.reduce(0, +)
      }
      return "\(sum)"
    },
    TaskBehaviour("a Task that blocks its thread keeps no other from running", "ran") {
      let (hasBegun, isWoken) = (Flag(), Flag())
      let mayEnd = DispatchSemaphore(value: 0)
      // Signals by a Task that another thread has to run, and by a queue in the end, if none does.
      DispatchQueue.global().asyncAfter(deadline: .now() + 120) { mayEnd.signal() }
      let blocked = Task.detached {
        hasBegun.raise()
        synchronously { mayEnd.wait() }
        return isWoken.isRaised
      }
      let waker = Task.detached {
        while !hasBegun.isRaised { await Task.yield() }
        isWoken.raise()
        mayEnd.signal()
      }
      let wasWoken = await blocked.value
      await waker.value
      return wasWoken ? "ran" : "did not"
    },
  ]
}

// MARK: - Time

extension TaskBehaviour {
  private static func isEarly<C: Clock>(_ clock: C, _ sleep: (C) async throws -> Void) async rethrows -> Bool
  where C.Duration == Duration {
    let start = clock.now
    try await sleep(clock)
    return start.duration(to: clock.now) < .milliseconds(3)
  }

  fileprivate static let time: [TaskBehaviour] = [
    TaskBehaviour("no sleep is early, by any clock", "false false false false false") {
      let (continuous, suspending) = (ContinuousClock(), SuspendingClock())
      let first = try await isEarly(continuous) { _ in try await Task.sleep(for: .milliseconds(3)) }
      let second = try await isEarly(continuous) { _ in try await Task.sleep(nanoseconds: 3_000_000) }
      let third = try await isEarly(continuous) { try await $0.sleep(until: $0.now + .milliseconds(3)) }
      let fourth = try await isEarly(suspending) { try await $0.sleep(until: $0.now + .milliseconds(3)) }
      let fifth = try await isEarly(suspending) { clock in
        try await Task.sleep(for: .milliseconds(3), tolerance: .milliseconds(1), clock: clock)
      }
      return "\(first) \(second) \(third) \(fourth) \(fifth)"
    },
    TaskBehaviour("a sleep of nothing, and one until a time that is over, end", "ended") {
      try await Task.sleep(for: .zero)
      try await Task.sleep(nanoseconds: 0)
      try await ContinuousClock().sleep(until: .now - .seconds(5))
      return "ended"
    },
    TaskBehaviour("the shorter of two sleeps ends first", "short long") {
      await withTaskGroup(of: String.self) { group in
        // So long that no machine is too slow for the other one.
        for (name, time) in [("long", Duration.seconds(600)), ("short", .milliseconds(1))] {
          group.addTask {
            try? await Task.sleep(for: time)
            return name
          }
        }
        let first = await group.next() ?? ""
        group.cancelAll()
        return "\(first) \(await group.next() ?? "")"
      }
    },
    TaskBehaviour("a thousand sleeps", "1000") {
      let count = await withTaskGroup(of: Int.self) { group in
        for number in 0..<1_000 {
          group.addTask {
            try? await Task.sleep(for: .microseconds(number))
            return 1
          }
        }
        return await group.reduce(0, +)
      }
      return "\(count)"
    },
    TaskBehaviour("a sleep that never ends can be cancelled", "CancellationError") {
      let task = Task { await asyncOutcome { try await Task.sleep(for: .seconds(Int64.max / 2)) } }
      try await Task.sleep(for: .milliseconds(1))
      task.cancel()
      return await task.value
    },
  ]
}

// MARK: - Depth

private func descend(_ depth: Int) async -> Int { depth == 0 ? 0 : await descend(depth - 1) + 1 }
@inline(never) private func recurse(_ depth: Int) -> Int { depth == 0 ? 0 : recurse(depth - 1) + 1 }
private func tree(_ depth: Int) async -> Int {
  guard depth > 0 else { return 1 }
  async let left = tree(depth - 1)
  async let right = tree(depth - 1)
  return await left + right
}

extension TaskBehaviour {
  fileprivate static let depth: [TaskBehaviour] = [
    TaskBehaviour("async recursion", "100000") { "\(await descend(100_000))" },
    TaskBehaviour("recursion on the thread's stack", "5000") { "\(await Task.detached { recurse(5_000) }.value)" },
    TaskBehaviour("a tree of children", "4096") { "\(await tree(12))" },
    TaskBehaviour("a chain of Tasks", "10000") {
      var task = Task { 0 }
      for _ in 0..<10_000 {
        let last = task
        task = Task { await last.value + 1 }
      }
      return "\(await task.value)"
    },
    TaskBehaviour("a hundred thousand Tasks", "100000") {
      let count = Tally()
      let tasks = (0..<100_000).map { _ in Task.detached { count.add() } }
      for task in tasks { _ = await task.value }
      return "\(count.value)"
    },
  ]
}
