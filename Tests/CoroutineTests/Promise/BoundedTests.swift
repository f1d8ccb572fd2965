import Coroutine
import Dispatch
import Testing

@Suite("Promise: bounded concurrency and progress", .timeLimit(.minutes(10)))
struct BoundedTests {
  /// Counts the elements that are taken.
  private struct Counting: Sequence, IteratorProtocol {
    let taken: Trace
    var left: Int
    mutating func next() -> Int? {
      guard left > 0 else { return nil }
      left -= 1
      taken("taken")
      return left
    }
  }

  @Test(.inWorlds) func `at most the limit is in flight, elements are taken lazily, the order is kept`() throws {
    let taken = Trace()
    let (now, most, gate) = (Locked(0), Locked(0), Gate())
    let result = Promise<Int>.all(of: Counting(taken: taken, left: 40), concurrently: 4) { element in
      let count = now.withLock { (value: inout Int) -> Int in
        value += 1
        return value
      }
      most.withLock { $0 = max($0, count) }
      return gate.then { Promise.after(.seconds(element % 5)) }.then { () -> Int in
        now.withLock { $0 -= 1 }
        return element
      }
    }
    #expect(taken.count == 4)
    gate.open()
    #expect(try co_await(result) == (0..<40).reversed())
    #expect(most.current == 4)
  }

  @Test func `nothing is taken while observers of a cancelled result are told`() async throws {
    try await onOwnThread {
      let (taken, queue, first) = (Trace(), DispatchQueue(label: "bounded"), Promise<Int>())
      let elements = Counting(taken: taken, left: 3)
      let result = Promise<Int>.all(of: elements, concurrently: 1, on: queue) { _ in first }
      let observation = result.observe { _ in
        first.fulfill(1)
        // The coroutine goes on meanwhile.
        for _ in 0..<5 { queue.sync {} }
      }
      result.cancel()
      #expect(taken.count == 1)
      withExtendedLifetime(observation) {}
    }
  }

  @Test func `a retry may go to another queue before its thread waits`() async throws {
    try await onOwnThread {
      let (other, last) = (DispatchQueue(label: "other"), Promise<Int>())
      let isThere = DispatchSemaphore(value: 0)
      let result = Promise<Int>.retry(attempts: 2, on: DispatchQueue(label: "dropped")) { attempt in
        if attempt == 1 { throw Oops("first") }
        try co_switch(to: other)
        isThere.signal()
        return last
      }
      isThere.wait()
      DispatchQueue.global().async { last.fulfill(7) }
      let value = try result.blockingWait()
      #expect(value == 7)
    }
  }

  @Test func `nothing is taken after the first failure`() async {
    let taken = Trace()
    let result = Promise<Int>.all(of: Counting(taken: taken, left: 1000), concurrently: 2) { element in
      element == 995 ? .failure(Oops("995")) : .value(element)
    }
    #expect(await asyncOutcome { try await result.value } == "Oops(995)")
    // The fifth element fails.
    #expect(taken.count == 5)

    let (later, work) = (Trace(), Promise<Int>())
    let failing = Promise<Int>.all(of: Counting(taken: later, left: 10), concurrently: 1) { _ in work }
    work.reject(Oops("work"))
    #expect(failing.isRejected && later.count == 1)
    failing.ignore()
  }

  @Test func `a limit below one is an error, and the result for no elements is empty`() async {
    let none = Promise<Int>.all(of: [1], concurrently: 0) { Promise.value($0) }
    #expect(await asyncOutcome { try await none.value } == "invalidCount")
    #expect(
      await asyncOutcome { try await Promise<Int>.all(of: [Int](), concurrently: 3) { .value($0) }.value } == "[]"
    )
    let settled = Promise<Int>.allSettled(of: [1], concurrently: -1) { Promise.value($0) }
    #expect(await asyncOutcome { try await settled.value } == "invalidCount")
    #expect(
      await asyncOutcome { try await Promise<Int>.allSettled(of: [Int](), concurrently: 1) { .value($0) }.value }
        == "[]"
    )
  }

  @Test func `waiting on the queue that takes its elements throws instead of blocking that queue`() async throws {
    let queue = taggedQueue("needed")
    let work = Promise<Int>()
    let bounded = Promise<Int>.all(of: 0..<2, concurrently: 1, on: queue) { _ in work }
    let retried = Promise<Int>.retry(attempts: 2, on: queue) { _ in work }
    let seen = try await onBlock(of: queue) {
      [outcome { try bounded.blockingWait() }, outcome { try retried.blockingWait() }]
    }
    #expect(seen == ["wouldDeadlock", "wouldDeadlock"])
    work.fulfill(3)
    #expect(await asyncOutcome { try await bounded.value } == "[3, 3]")
    #expect(await asyncOutcome { try await retried.value } == "3")
  }

  @Test func `if it is settled directly, it takes no more elements, and does not affect those in flight`() async throws
  {
    let (taken, work, other) = (Trace(), Promise<Int>(), Promise<[Int]>())
    let byHand = Promise<Int>.all(of: Counting(taken: taken, left: 10), concurrently: 1) { _ in work }
    #expect(byHand.fulfill([7]))
    let following = Promise<Int>.all(of: Counting(taken: taken, left: 10), concurrently: 1) { _ in work }
    following.follow(other)
    other.fulfill([8])
    #expect(following.result.map { outcome($0) } == "[8]")
    #expect(work.isPending)
    work.fulfill(1)
    // Queued behind the handlers that would take further elements.
    _ = try await work.then { $0 }.value
    #expect(taken.count == 2)
  }

  @Test func `twenty thousand settled promises need no stack`() async throws {
    let queue = taggedQueue("bounded")
    let sum = try await co_launch(on: queue, stack: .bytes(64 * 1024)) {
      try co_await(Promise<Int>.all(of: 0..<20_000, concurrently: 3) { .value($0) }).count
    }.value
    #expect(sum == 20_000)
  }

  @Test func `cancelling cancels the elements in flight and takes no more`() async {
    let taken = Trace()
    let works = Locked<[Promise<Int>]>([])
    let result = Promise<Int>.all(of: Counting(taken: taken, left: 10), concurrently: 3) { _ in
      let work = Promise<Int>()
      works.withLock { $0.append(work) }
      return work
    }
    result.cancel()
    #expect(await asyncOutcome { try await result.value } == "CancellationError")
    #expect(works.current.allSatisfy(\.isRejected) && taken.count == 3)
  }

  @Test func `allSettled continues after failures`() async throws {
    let result = Promise<Int>.allSettled(of: 0..<4, concurrently: 2) { $0 == 1 ? .failure(Oops("1")) : .value($0) }
    #expect(try await result.value.map { outcome($0) } == ["0", "Oops(1)", "2", "3"])
  }

  @Test func `progress: a loop sees the latest value and ends with the promise, which then has its value`() async throws
  {
    let seen = try await onSerialQueue {
      let promise = ProgressPromise<String>()
      co_launch {
        for unit in 1...4 {
          promise.update(completed: unit, total: 4)
          if unit.isMultiple(of: 2) { for _ in 0..<3 { try co_yield() } }
        }
        promise.fulfill("done")
        promise.update(completed: 9, total: 4)
      }
      var seen = Array(promise).map { "\($0.fraction)" }
      seen.append(try co_await(promise))
      return seen
    }
    #expect(seen == ["0.5", "1.0", "done"])
  }

  @Test func `progress ends also on failure, when cancelled, and when the loop comes late`() async throws {
    let failing = ProgressPromise<Int>()
    failing.update(completed: 1, total: 0)
    failing.reject(Oops("x"))
    failing.ignore()
    let seen = try await onCoroutine { Array(failing).map(\.fraction) }
    #expect(seen == [0])

    let promise = ProgressPromise<Int>()
    let loop = Task {
      var count = 0
      for try await _ in promise { count += 1 }
      return count
    }
    promise.update(completed: 1, total: 2)
    promise.cancel()
    #expect(try await loop.value <= 1)

    let never = ProgressPromise<Int>()
    try await onSerialQueue {
      let job = co_launch { Array(never).count }
      try co_yield()
      job.cancel()
      #expect(try job.join() == 0)
    }
  }
}
