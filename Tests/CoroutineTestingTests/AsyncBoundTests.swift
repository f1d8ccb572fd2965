import Coroutine
import Dispatch
import Foundation
import Synchronization
import Testing

@testable import CoroutineTesting

/// What a world of async code must not leave unsaid: ways out before and after the body, runs without an end, results
/// that are kept, and queues.
@Suite(.timeLimit(.minutes(10)), .serialized)
struct AsyncBoundTests {
  // MARK: Programs of few choices

  @Test(arguments: 1...4) func `priorities find what one switch shows, where a run has hardly a choice`(depth: Int) {
    let found = explore(.priorities(depth: depth)) {
      let latch = Latch()
      let task = Task {
        let before = await latch.isOpen
        await Task.yield()
        if await latch.isOpen != before { throw Wrong("changed") }
      }
      await Task.yield()
      await latch.open()
      try await task.value
    }
    #expect(found.failure?.error is Wrong)
  }

  // MARK: Ways out

  @Test func `the first part of a test's body leaves the world by name too, if the body is async`() {
    let body: @Sendable () async -> Void = { DispatchQueue.global().async {} }
    let plain = exploreTest(.inOrder, .memory, nil) { try SimulatedTrait.run(in: .current, body) }
    #expect(plain.failure == nil)
    let async = exploreTest(.inOrder, .memory, nil) {
      try SimulatedTrait.run(in: .current) {
        await body()
        await Task.yield()
      }
    }
    #expect(async.failure?.error is World.RealWaitError)
    #expect(async.failure?.description.contains("Task 1 calls dispatch_async") == true, "\(async)")
  }

  @Test func `the first part of a test's body may include Dispatch`() {
    let found = exploreTest(.random(seeds: 20), .memory, nil) {
      try SimulatedTrait.run(in: .current) {
        World.includeDispatch()
        let order = Locked<[Int]>([])
        DispatchQueue(label: "own").async { order.withLock { $0.append(2) } }
        // Not before the end of the step, as a thread of Dispatch might.
        order.withLock { $0.append(1) }
        try await Task.sleep(for: .seconds(1))
        let all = order.withLock { $0 }
        if all != [1, 2] { throw Wrong("\(all)") }
      }
    }
    #expect(found.failure == nil, "\(found)")
  }

  @Test func `a Task that leaves the world after the body fails the run, unless the body has`() throws {
    // Whether the other thread is faster or slower than the end of the world.
    for delay: UInt32 in [0, 0, 0, 20_000] {
      let begin: @Sendable () async -> Void = {
        await Task.yield()
        Task {
          await withCheckedContinuation { continuation in
            DispatchQueue.global().async {
              usleep(delay)
              continuation.resume()
            }
          }
        }
      }
      let failure = try #require(explore(.inOrder, begin).failure)
      #expect(failure.error is World.RealWaitError, "\(failure)")
      let own = explore(.inOrder) {
        await begin()
        throw Wrong("own")
      }
      #expect(own.failure?.error is Wrong, "\(own)")
    }
  }

  @Test func `a resume from outside wakes a world that waits for the outside`() async throws {
    let waiting = Locked<UnsafeContinuation<Void, Never>?>(nil)
    let thread = Locked<String?>(nil)
    let isResumed = Flag()
    let found = try await onOwnThread {
      thread.current = try FileManager.default.destinationOfSymbolicLink(atPath: "/proc/thread-self")
      Thread.detachNewThread {
        while !(waiting.withLock { $0 != nil } && sleeps(thread.current)) { sched_yield() }
        waiting.withLock { $0 }?.resume()
      }
      return explore(.inOrder) {
        let outside = co_launch {
          try World.outside { try co_blocking { while !isResumed.isSet { sched_yield() } } }
        }
        await withUnsafeContinuation { continuation in waiting.withLock { $0 = continuation } }
        isResumed.set()
        try await outside.value
      }
    }
    #expect(found.failure?.error is World.RealWaitError)
    #expect(found.failure?.description.contains("was resumed by a thread outside") == true, "\(found)")
  }

  // MARK: Ends

  @Test func `a wait that nothing ends, beside a loop that sleeps, reaches a limit`() throws {
    let body: @Sendable () async throws -> Void = {
      Task(name: "heart") { while true { try await Task.sleep(for: .seconds(1)) } }
      await withUnsafeContinuation { (_: UnsafeContinuation<Void, Never>) in }
    }
    var explorer = Explorer(.async(body), .memory, nil)
    explorer.mostSteps = 1_000
    let error = try #require(explorer.explore(.inOrder).failure?.error as? World.TimeLimitError)
    #expect(error.limit == nil)
    #expect("\(error)".contains("time has passed ten million times"), "\(error)")
    #expect("\(error)".contains("\"heart\""), "\(error)")
    // What has a limit of its own may take as long as that says.
    var limited = Explorer(.async(body), .memory, .seconds(500))
    limited.mostSteps = 1_000
    #expect((limited.explore(.inOrder).failure?.error as? World.TimeLimitError)?.limit == .seconds(500))
  }

  @Test func `a loop that yields until something has changed waits for time`() {
    let found = explore(.inOrder) {
      let tally = Latch()
      Task {
        try await Task.sleep(for: .seconds(3600))
        await tally.open()
      }
      while await !tally.isOpen { await Task.yield() }
      if World.current?.now != .seconds(3600) { throw Wrong("\(String(describing: World.current?.now))") }
    }
    #expect(found.failure == nil, "\(found)")
  }

  @Test func `a result that many Tasks hide is found before a deadlock is told`() {
    let found = explore(.random(seeds: 20)) {
      let (numbers, continuation) = AsyncStream.makeStream(of: Int.self)
      let others = (0..<100).map { _ in
        Task {
          let (never, held) = AsyncStream.makeStream(of: Int.self)
          for await _ in never {}
          held.finish()
        }
      }
      await Task.yield()
      await Keeper().begin(continuation)
      for await _ in numbers {}
      for other in others { other.cancel() }
    }
    #expect(found.failure == nil, "\(found)")
  }

  @Test func `a loop that goes on after its cancellation is told as that`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      AsyncWatch.mostComputing.store(1, ordering: .relaxed)
      _ = explore(.inOrder) {
        Task { while true { try? await Task.sleep(for: .seconds(1)) } }
        await Task.yield()
      }
    }
    #expect(text(of: result).contains("The Task is cancelled, so each sleep in it ends at once"))
    #expect(text(of: result).contains("CO_REPLAY=1"))
  }

  @Test func `a test's body that blocks its thread for a Task of its own is named`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      AsyncWatch.limit.store(1, ordering: .relaxed)
      _ = exploreTest(.inOrder, .memory, nil) {
        try SimulatedTrait.run(in: .current) {
          let ended = DispatchSemaphore(value: 0)
          Task { ended.signal() }
          block(ended)
        }
      }
    }
    #expect(text(of: result).contains("has blocked its thread"))
    #expect(text(of: result).contains("CO_REPLAY=1"))
  }

  @Test func `a yield is told as a yield`() throws {
    let failure = try #require(
      explore(.inOrder) {
        await Task(name: "yielding") { await Task.yield() }.value
        throw Wrong("seen")
      }.failure
    )
    #expect(failure.description.contains("yields"), "\(failure)")
  }

  // MARK: Queues

  @Test func `what waits for a queue comes after what the queue has taken`() {
    let found = explore(.random(seeds: 50)) {
      World.includeDispatch()
      let queue = DispatchQueue(label: "own")
      let order = Locked<[Int]>([])
      let note: @Sendable (Int) -> Void = { number in order.withLock { $0.append(number) } }
      queue.async { note(1) }
      queue.async(flags: .barrier) { note(2) }
      async let other: Void = { queue.async { note(5) } }()
      queue.sync { note(3) }
      // The queue has a candidate that has nothing left to do.
      queue.async { note(4) }
      await other
      try await Task.sleep(for: .seconds(1))
      let all = order.withLock { $0 }
      if all != [1, 2, 3, 4, 5], all != [1, 2, 3, 5, 4] { throw Wrong("\(all)") }
    }
    #expect(found.failure == nil, "\(found)")
  }

  @Test func `a block of the main queue is on the main actor, one of another queue is not`() async {
    let found = explore(.random(seeds: 20)) {
      World.includeDispatch()
      await withCheckedContinuation { continuation in
        DispatchQueue.main.async { MainActor.assumeIsolated { continuation.resume() } }
      }
    }
    #expect(found.failure == nil, "\(found)")
    await #expect(processExitsWith: .failure) {
      _ = explore(.inOrder) {
        World.includeDispatch()
        await withCheckedContinuation { continuation in
          DispatchQueue(label: "other").async { MainActor.assumeIsolated { continuation.resume() } }
        }
      }
    }
  }

  @Test func `a queue is kept for the work that it has taken, and no longer`() {
    let found = explore(.inOrder) {
      World.includeDispatch()
      let key = DispatchSpecificKey<Ending>()
      let isGone = Flag()
      let end: @Sendable () -> Void = { isGone.set() }
      let ran = Flag()
      makeQueue(key, Ending(end)).async { ran.set() }
      if isGone.isSet { throw Wrong("the queue has gone before its work") }
      try await Task.sleep(for: .seconds(1))
      // Dispatch ends a queue on a thread of its own.
      let limit = DispatchTime.now() + .seconds(60)
      while !isGone.isSet, DispatchTime.now() < limit { sched_yield() }
      if !ran.isSet || !isGone.isSet { throw Wrong("\(ran.isSet) \(isGone.isSet)") }
    }
    #expect(found.failure == nil, "\(found)")
  }
}

private func text(of result: ExitTest.Result?) -> String {
  String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
}

/// Whether a thread sleeps, by the kernel's word; `thread` is its directory below /proc.
private func sleeps(_ thread: String?) -> Bool {
  let stat = thread.flatMap { try? String(contentsOfFile: "/proc/\($0)/stat", encoding: .utf8) }
  return stat?.split(separator: ")").last?.hasPrefix(" S") ?? false
}

private func block(_ ended: DispatchSemaphore) { ended.wait() }

private func makeQueue(_ key: DispatchSpecificKey<Ending>, _ value: Ending) -> DispatchQueue {
  let queue = DispatchQueue(label: "kept")
  queue.setSpecific(key: key, value: value)
  return queue
}

private final class Ending: Sendable {
  private let end: @Sendable () -> Void
  init(_ end: @escaping @Sendable () -> Void) { self.end = end }
  deinit { end() }
}

private actor Latch {
  private(set) var isOpen = false
  func open() { isOpen = true }
}

/// A result that ends a stream when it goes.
private final class Finisher: Sendable {
  private let continuation: AsyncStream<Int>.Continuation
  init(_ continuation: AsyncStream<Int>.Continuation) { self.continuation = continuation }
  deinit { continuation.finish() }
}

private actor Keeper {
  /// Begins a Task that ends in a step of the actor's own queue.
  func begin(_ continuation: AsyncStream<Int>.Continuation) {
    Task {
      await Task.yield()
      return Finisher(continuation)
    }
  }
}
