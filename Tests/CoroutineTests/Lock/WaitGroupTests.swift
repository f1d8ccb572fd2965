import Coroutine
import Testing

@Suite("WaitGroup and Latch", .timeLimit(.minutes(10)))
struct WaitGroupTests {
  @Test func `a group without work does not make a coroutine wait`() async throws {
    try await onSerialQueue {
      try WaitGroup().wait()
      try Latch(0).wait()
      #expect(Latch(0).isOpen)
    }
  }

  @Test func `all waiters continue when the last piece of work has ended, first come, first served`() async throws {
    let trace = try await onSerialQueue {
      let (group, row) = (WaitGroup(), Queueing())
      group.add(2)
      for label in ["a", "b", "c"] { try row.enqueue(label) { try group.wait() } }
      group.done()
      try row.settle()
      #expect(row.trace.all.isEmpty)
      group.done()
      try row.settle()
      return row.trace.all
    }
    #expect(trace == ["a", "b", "c"])
  }

  @Test func `a count that rises again at once keeps no earlier waiter, and releases no later one`()
    async throws
  {
    let trace = try await onSerialQueue {
      let (group, row) = (WaitGroup(), Queueing())
      group.add()
      try row.enqueue("before") { try group.wait() }
      group.done()
      group.add()
      try row.enqueue("after") { try group.wait() }
      try row.settle()
      #expect(row.trace.all == ["before"])
      group.done()
      try row.settle()
      return row.trace.all
    }
    #expect(trace == ["before", "after"])
  }

  @Test func `adding while others wait is counted`() async throws {
    let trace = try await onSerialQueue {
      let (group, row) = (WaitGroup(), Queueing())
      group.add()
      try row.enqueue("waiter") { try group.wait() }
      group.add(2)
      group.done()
      group.done()
      try row.settle()
      #expect(row.trace.all.isEmpty)
      group.done()
      try row.settle()
      return row.trace.all
    }
    #expect(trace == ["waiter"])
  }

  @Test func `everything before the last done is visible after the wait, from any thread`() async throws {
    let group = WaitGroup()
    let parts = (0..<8).map { _ in UnsafeCell() }
    group.add(parts.count)
    for part in parts {
      startThread {
        part.increment()
        group.done()
      }
    }
    let sum = try await onCoroutine {
      try group.wait()
      return parts.reduce(0) { $0 + $1.count }
    }
    #expect(sum == 8)
  }

  @Test func `a latch opens at zero and stays open`() async throws {
    let trace = try await onSerialQueue {
      let (latch, row) = (Latch(3), Queueing())
      try row.enqueue("early") { try latch.wait() }
      latch.countDown(2)
      #expect(!latch.isOpen)
      latch.countDown(0)
      try row.settle()
      #expect(row.trace.all.isEmpty)
      latch.countDown()
      #expect(latch.isOpen)
      try row.settle()
      try row.enqueue("late") { try latch.wait() }
      return row.trace.all
    }
    #expect(trace == ["early", "late"])
  }

  @Test func `a dump says that a coroutine waits for a count`() async throws {
    let dump = try await onSerialQueue {
      let (latch, row) = (Latch(1), Queueing())
      try row.enqueue("at the latch") { try latch.wait() }
      defer { latch.countDown() }
      return dumpOfOwnQueue()
    }
    #expect(dump.contains("\"at the latch\" waiting for a count to reach zero"))
  }

  @Test func `more done than added ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let group = WaitGroup()
      group.add()
      group.done()
      group.done()
    }
    #expect(died?.said("its count would be negative") == true)
  }

  @Test func `adding a negative number ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { WaitGroup().add(-1) }
    #expect(died?.said("A WaitGroup cannot add -1") == true)
  }

  @Test func `more work than can be counted ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { WaitGroup().add(.max) }
    #expect(died?.said("pieces of work more") == true)
  }

  @Test func `a latch of a negative number ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { _ = Latch(-1) }
    #expect(died?.said("A Latch cannot be counted down from -1") == true)
  }

  @Test func `counting a latch down below zero ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      Latch(1).countDown(2)
    }
    #expect(died?.said("its count would be negative") == true)
  }

  @Test func `counting a latch down by a negative number ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      Latch(1).countDown(-1)
    }
    #expect(died?.said("A Latch cannot count down by -1") == true)
  }
}
