import Dispatch
import Synchronization
import Testing

@testable import Coroutine

/// Counts its ends; a body captures it.
private final class Captured: Sendable {
  let ends: Ends
  init(_ ends: Ends) { self.ends = ends }
  deinit { ends.count.add(1, ordering: .relaxed) }
}

private final class Ends: Sendable {
  let count = Atomic<Int>(0)

  /// Waits until there is one, and lets a second one come.
  func areOne() throws -> Bool {
    while count.load(ordering: .relaxed) == 0 { try co_yield() }
    for _ in 0..<10 { try co_yield() }
    return count.load(ordering: .relaxed) == 1
  }
}

/// What a launcher creates for its coroutine alone.
private final class Capture {
  var numbers: (Int, Int, Int, Int)
  init(_ number: Int) { numbers = (number, number &* 3, number &* 5, number &* 7) }
  func isIntact(_ number: Int) -> Bool { numbers == (number, number &* 3, number &* 5, number &* 7) }
}

private struct Holder {
  let capture: Capture
  consuming func run(_ number: Int) -> Bool { capture.isIntact(number) }
}

/// Creates an object, and launches a coroutine that is the only one to use it.
@inline(never)
private func launchWithCapture(_ number: Int) -> Job<Bool> {
  let holder = Holder(capture: Capture(number))
  return co_launch(start: .lazy) { holder.run(number) }
}

/// Overwrites what the launcher has left of its stack.
@inline(never)
private func overwriteStack(_ value: UInt8) -> Int {
  withUnsafeTemporaryAllocation(byteCount: 4096, alignment: 16) { bytes in
    bytes.initializeMemory(as: UInt8.self, repeating: value)
    return bytes.reduce(0) { $0 &+ Int($1) }
  }
}

/// A body lies where its result will lie, until it is taken.
///
/// Each way to its end releases its captures once.
@Suite("The body of a job", .timeLimit(.minutes(10)))
struct BodyStorageTests {
  @Test func `is released once when it has run`() async throws {
    let ends = Ends()
    let captured = Captured(ends)
    let job = co_launch { [captured] in
      "\(captured.ends.count.load(ordering: .relaxed))" + String(repeating: "a", count: 99)
    }
    _ = consume captured
    #expect(try await job.value == "0" + String(repeating: "a", count: 99))
    #expect(try await co_launch { try ends.areOne() }.value)
  }

  @Test func `is released once when it throws`() async throws {
    struct Refusal: Error {}
    let ends = Ends()
    let job = co_launch { [captured = Captured(ends)] in
      _ = captured
      throw Refusal()
    }
    await #expect(throws: Refusal.self) { try await job.value }
    #expect(try await co_launch { try ends.areOne() }.value)
  }

  @Test func `is released once when the job is cancelled before it begins`() async throws {
    let ends = Ends()
    let queue = DispatchQueue(label: "suspended")
    queue.suspend()
    do {
      let job = co_launch(on: queue) { [captured = Captured(ends)] in _ = captured }
      job.cancel()
      await #expect(throws: CancellationError.self) { try await job.value }
    }
    queue.resume()
    #expect(try await co_launch { try ends.areOne() }.value)
  }

  @Test(arguments: [false, true])
  func `is released once with a lazy job that is never started`(isCancelled: Bool) async throws {
    let ends = Ends()
    weak var queue: DispatchQueue?
    do {
      let own = DispatchQueue(label: "lazy")
      queue = own
      let job = co_launch(on: own, start: .lazy) { [captured = Captured(ends)] in _ = captured }
      if isCancelled { job.cancel() }
    }
    #expect(try await co_launch { try ends.areOne() }.value)
    // The job has given up its queue as well, at the latest when the queue has dropped the job.
    while queue != nil { await Task.yield() }
  }

  @Test func `is released once when there is no stack for it`() async throws {
    let ends = Ends()
    let job = co_launch(stack: .bytes(.max)) { [captured = Captured(ends)] in _ = captured }
    await #expect(throws: CoroutineError.self) { try await job.value }
    #expect(try await co_launch { try ends.areOne() }.value)
  }

  @Test func `keeps what its launcher created for it after the launcher has returned`() async throws {
    for number in 0..<100 {
      let job = launchWithCapture(number)
      #expect(overwriteStack(0x55) == 4096 * 0x55)
      #expect(try await job.value, "an object that the launcher created for its coroutine was overwritten")
    }
  }

  @Test func `makes room for results of one to four words`() async throws {
    #expect(try await co_launch { 7 }.value == 7)
    #expect(try await co_launch { "two words, of which the text is long" }.value.count == 36)
    let three = try await co_launch { (1, "a", true) }.value
    #expect(three == (1, "a", true))
    let four = try await co_launch { ([1], [2], [3], [4]) }.value
    #expect(four == ([1], [2], [3], [4]))
  }

  @Test func `starts with a lazy job, whose queue is held until then`() async throws {
    let job = co_launch(on: DispatchQueue(label: "held"), start: .lazy) { 3 }
    #expect(try await job.value == 3)
  }
}
