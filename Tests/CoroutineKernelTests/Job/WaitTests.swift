import Coroutine
import Dispatch
import Testing

@Suite("Job.blockingWait", .timeLimit(.minutes(10)))
struct WaitTests {
  @Test func `a plain thread waits for the value`() async throws {
    let value = try await onOwnThread {
      let me = threadID()
      return try co_launch(on: taggedQueue("waits for its waiter")) {
        while !isAsleep(me) { try co_yield() }
        return 8
      }.blockingWait()
    }
    #expect(value == 8)
  }

  @Test func `a plain thread gets the failure, every time`() async throws {
    let seen = try await onOwnThread {
      let job = co_launch { () throws -> Int in throw Oops("late") }
      return [outcome { try job.blockingWait() }, outcome { try job.blockingWait() }]
    }
    #expect(seen == ["Oops(late)", "Oops(late)"])
  }

  @Test func `several threads wait for one job`() async throws {
    let gate = Gate()
    let job = co_launch {
      try gate.pass()
      return 3
    }
    let results = Locked<[Int]>([])
    let done = Promise<Void>()
    for _ in 0..<4 {
      startThread {
        let value = (try? job.blockingWait()) ?? -1
        let isLast = results.withLock { results in
          results.append(value)
          return results.count == 4
        }
        if isLast { done.open() }
      }
    }
    gate.open()
    try await onCoroutine { try done.pass() }
    #expect(results.current == [3, 3, 3, 3])
  }

  @Test func `inside a coroutine it throws at once`() async throws {
    let seen = try await onCoroutine {
      let gate = Gate()
      let job = co_launch(on: taggedQueue("elsewhere")) { try gate.pass() }
      defer { gate.open() }
      return outcome { try job.blockingWait() }
    }
    #expect(seen == "wouldDeadlock")
  }

  @Test func `inside a coroutine on the job's own queue it throws at once`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch { 1 }
      return [outcome { try job.blockingWait() }, outcome { try job.join() }]
    }
    #expect(seen == ["wouldDeadlock", "1"])
  }

  @Test func `on the queue that the job needs it throws at once`() async throws {
    let queue = taggedQueue("needed")
    let (seen, job) = try await onBlock(of: queue) { () -> (String, Job<Int>) in
      let job = co_launch(on: queue) { 2 }
      return (outcome { try job.blockingWait() }, job)
    }
    #expect(seen == "wouldDeadlock")
    #expect(try await job.value == 2)
  }

  @Test func `on a queue that runs on the needed one it throws at once`() async throws {
    let base = taggedQueue("base")
    let above = DispatchQueue(label: "coroutine.tests.above", target: base)
    let (seen, job) = try await onBlock(of: above) { () -> (String, Job<Int>) in
      let job = co_launch(on: base) { 2 }
      return (outcome { try job.blockingWait() }, job)
    }
    #expect(seen == "wouldDeadlock")
    #expect(try await job.value == 2)
  }

  @MainActor
  @Test func `on the main queue, for a job of the main queue, it throws at once`() async throws {
    let job = co_launch(on: .main) { 2 }
    #expect(outcome { try job.blockingWait() } == "wouldDeadlock")
    #expect(try await job.value == 2)
  }

  @Test func `on one queue it waits for a job of another`() async throws {
    let far = taggedQueue("far")
    let seen = try await onBlock(of: taggedQueue("near")) {
      let me = threadID()
      return try co_launch(on: far) {
        while !isAsleep(me) { try co_yield() }
        return currentTag
      }.blockingWait()
    }
    #expect(seen == "far")
  }

  @Test func `on a queue of its own it waits for a job of the shared scheduler`() async throws {
    #expect(try await onBlock(of: taggedQueue("near")) { try co_launch { 4 }.blockingWait() } == 4)
  }
}
