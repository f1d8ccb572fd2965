import Coroutine
import Dispatch
import Testing

@Suite("Queues", .timeLimit(.minutes(10)))
struct QueueTests {
  @Test func `code between two suspensions is atomic on a serial queue, for coroutines and blocks`() async throws {
    let queue = taggedQueue("serial")
    let cell = UnsafeCell()
    let jobs = (0..<50).map { _ in
      co_launch(on: queue) {
        for round in 0..<100 {
          cell.increment()
          if round.isMultiple(of: 10) { try co_delay(.microseconds(50)) } else { try co_yield() }
        }
      }
    }
    for _ in 0..<1_000 { queue.async { cell.increment() } }
    for job in jobs { try await job.value }
    #expect(try await onBlock(of: queue) { cell.count } == 50 * 100 + 1_000)
  }

  @Test func `it stays atomic while threads wake the coroutines`() async throws {
    let queue = taggedQueue("serial")
    let cell = UnsafeCell()
    let jobs = (0..<20).map { _ in
      co_launch(on: queue) {
        for _ in 0..<20 {
          try co_suspend { (done: Resumer<Void>) in DispatchQueue.global().async { done.resume(()) } }
          cell.increment()
        }
      }
    }
    for job in jobs { try await job.value }
    #expect(try await onBlock(of: queue) { cell.count } == 20 * 20)
  }

  @Test func `a concurrent queue is one serial worker for all coroutines launched on it`() async throws {
    let queue = taggedQueue("concurrent", attributes: .concurrent)
    let cell = UnsafeCell()
    let jobs = (0..<50).map { _ in
      co_launch(on: queue) {
        for _ in 0..<100 {
          cell.increment()
          try co_yield()
        }
      }
    }
    for job in jobs { try await job.value }
    #expect(try await co_launch(on: queue) { cell.count }.value == 50 * 100)
  }

  @Test func `a concurrent queue's tags are seen: the worker runs on that queue`() async throws {
    let queue = taggedQueue("concurrent", attributes: .concurrent)
    #expect(try await co_launch(on: queue) { currentTag }.value == "concurrent")
  }

  @Test func `the main queue runs coroutines`() async throws {
    let cell = UnsafeCell()
    let jobs = (0..<10).map { _ in
      co_launch(on: .main) {
        for _ in 0..<10 {
          dispatchPrecondition(condition: .onQueue(.main))
          cell.increment()
          try co_yield()
        }
      }
    }
    for job in jobs { try await job.value }
    #expect(try await onBlock(of: .main) { cell.count } == 100)
  }

  @Test func `global queues run coroutines, a worker each`() async throws {
    let cell = UnsafeCell()
    let queue = DispatchQueue.global(qos: .utility)
    let jobs = (0..<10).map { _ in
      co_launch(on: queue) {
        for _ in 0..<100 {
          cell.increment()
          try co_yield()
        }
      }
    }
    for job in jobs { try await job.value }
    #expect(try await co_launch(on: queue) { cell.count }.value == 1_000)
  }

  @Test func `the shared scheduler runs many coroutines, and those that they launch`() async throws {
    let jobs = (0..<1_000).map { n in
      co_launch {
        try co_yield()
        return try co_launch { currentTag == nil ? n : -1 }.join()
      }
    }
    var sum = 0
    for job in jobs { sum += try await job.value }
    #expect(sum == 499_500)
  }

  @Test func `a suspended queue runs nothing until it is resumed`() async throws {
    let queue = taggedQueue("asleep")
    let trace = Trace()
    queue.suspend()
    let jobs = (1...3).map { n in co_launch(on: queue) { trace("\(n)") } }
    try await onCoroutine { for _ in 0..<10 { try co_yield() } }
    trace("resume")
    queue.resume()
    for job in jobs { try await job.value }
    #expect(trace.all == ["resume", "1", "2", "3"])
  }

  @Test func `coroutines keep their queue alive`() async throws {
    let gate = Gate()
    let job = parked(at: gate)
    gate.open()
    #expect(try await job.value == "dropped")
  }

  private func parked(at gate: Gate) -> Job<String?> {
    co_launch(on: taggedQueue("dropped")) {
      try gate.pass()
      return currentTag
    }
  }

  @Test func `a queue is released after its coroutines have ended`() async throws {
    let released = Gate()
    try await useOnce(DispatchSpecificKey<Tracked>(), Tracked { released.open() })
    try await onCoroutine { try released.pass() }
  }

  private func useOnce(_ key: DispatchSpecificKey<Tracked>, _ tracked: Tracked) async throws {
    let queue = DispatchQueue(label: "coroutine.tests.short-lived")
    queue.setSpecific(key: key, value: tracked)
    try await co_launch(on: queue) {
      try co_yield()
      // With a timer, which must not keep the queue either.
      try co_timeout(.seconds(3600)) { try co_yield() }
    }.value
  }

  @Test func `the waker keeps running: the woken coroutine runs when the waker parks`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let gate = Gate()
      let woken = co_launch {
        try gate.pass()
        trace("woken")
      }
      try co_yield()
      gate.open()
      trace("waker goes on")
      try woken.join()
    }
    #expect(trace.all == ["waker goes on", "woken"])
  }

  @Test func `woken coroutines run in the order of waking`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let gates = (0..<5).map { _ in Gate() }
      let jobs = gates.indices.map { n in
        co_launch {
          try gates[n].pass()
          trace("\(n)")
        }
      }
      try co_yield()
      for n in [3, 0, 4, 1, 2] { gates[n].open() }
      for job in jobs { try job.join() }
    }
    #expect(trace.all == ["3", "0", "4", "1", "2"])
  }
}
