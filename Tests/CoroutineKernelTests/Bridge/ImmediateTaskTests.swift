import CCoroutine
import CCoroutineRuntime
import CExceptions
import Coroutine
import Dispatch
import Testing

private enum Request {
  @TaskLocal static var user = "nobody"
}

/// Identifies the caller's current Task; nil if there is none.
@inline(never)
private func currentTask() -> Int? { withUnsafeCurrentTask { $0?.hashValue } }

/// Runs `body` as the synchronous part of a Task; a Task that fails answers with the error.
private func immediately<Output: Sendable>(_ body: @escaping @Sendable () throws -> Output) -> Task<Output, any Error> {
  Task.immediate { try body() }
}

/// A synchronous part that waits `times` times, with its own binding; returns how often it saw another's state.
@Sendable
private func waiting(_ name: String, _ times: Int, _ wait: (Int) throws -> Void) throws -> Int {
  guard let mine = currentTask() else { return 1 }
  var wrong = 0
  try Request.$user.withValue(name) {
    for time in 0..<times {
      try wait(time)
      if currentTask() != mine || Request.user != name { wrong += 1 }
    }
  }
  if Request.user == name { wrong += 1 }
  return wrong
}

@Suite("A coroutine that waits inside Task.immediate", .timeLimit(.minutes(10)))
struct ImmediateTaskTests {
  @Test func `two coroutines of one queue each keep their Task and its bindings`() async throws {
    let queue = taggedQueue("tasks")
    let jobs = (0..<2).map { index in
      co_launch(on: queue) {
        let task = immediately { try waiting("user \(index)", 20) { _ in try co_yield() } }
        let after = currentTask()
        return try co_await { try await task.value } + (after == nil ? 0 : 1)
      }
    }
    for job in jobs { #expect(try await job.value == 0) }
  }

  @Test func `other coroutines and blocks of the queue see no Task`() async throws {
    let queue = taggedQueue("tasks")
    let gate = Gate()
    let waits = co_launch(on: queue) { _ = immediately { try waiting("user", 1) { _ in try gate.pass() } } }
    let other = co_launch(on: queue) { (currentTask(), Request.user) }
    let seen = try await other.value
    #expect(seen.0 == nil && seen.1 == "nobody")
    #expect(try await onBlock(of: queue) { currentTask() } == nil)
    gate.open()
    try await waits.value
  }

  @Test func `it may continue on another queue, and await there`() async throws {
    let queues = (0..<2).map { taggedQueue("\($0)") }
    let task = try await onCoroutine {
      Task.immediate {
        let wrong = try waiting("user", 20) { time in
          try co_switch(to: queues[time % 2])
          if currentTag != "\(time % 2)" { throw Oops("queue") }
        }
        await Task.yield()
        return wrong
      }
    }
    #expect(try await task.value == 0)
  }

  @Test func `a coroutine that is started immediately inside a Task is not in it, and inherits its bindings`()
    async throws
  {
    let gate = Gate()
    let seen = Locked<[Bool]>([])
    let job = await Task {
      let mine = currentTask()
      let job = Request.$user.withValue("task") {
        co_launch(start: .immediate) {
          seen.withLock { $0.append(currentTask() == nil && Request.user == "task") }
          try gate.pass()
          seen.withLock { $0.append(currentTask() == nil) }
        }
      }
      seen.withLock { $0.append(mine != nil && currentTask() == mine) }
      return job
    }.value
    gate.open()
    try await job.value
    #expect(seen.current == [true, true, true])
  }

  @Test func `the body of a generator that a Task steps is not in the Task`() async {
    let bodies = Locked<[Bool]>([])
    let numbers = co_sequence(of: Int.self) { yield in
      for number in 0..<4 {
        bodies.withLock { $0.append(currentTask() == nil && Request.user == "nobody") }
        try yield(number)
      }
    }
    let handed = Handed(numbers)
    for number in 0..<4 {
      let kept = await Task {
        Request.$user.withValue("consumer") {
          let mine = currentTask()
          return handed.value.next() == number && currentTask() == mine && Request.user == "consumer"
        }
      }.value
      #expect(kept)
    }
    #expect(bodies.current == [true, true, true, true])
  }

  @Test func `a generator whose body waits keeps its consumer's Task, also on another thread`() async throws {
    let queues = (0..<2).map { taggedQueue("\($0)") }
    let task = try await onCoroutine {
      immediately {
        let numbers = co_sequence(of: Int.self) { yield in
          for number in 0..<20 {
            try co_switch(to: queues[number % 2])
            if currentTask() != nil { throw Oops("task") }
            try yield(number)
          }
        }
        return try waiting("user", 20) { time in
          if try numbers.step(of: time) != time { throw Oops("number") }
        }
      }
    }
    #expect(try await task.value == 0)
  }

  @Test func `if the Task cannot move with the coroutine, the wait is refused with an error`() async {
    await #expect(processExitsWith: .success) {
      precondition(cco_disable(CCO_MITIGATION_TASK_MOVES.rawValue))
      let refused = try await onCoroutine {
        immediately {
          // A generator's body is not in the Task, but the Task would have to wait for it.
          let body = co_sequence(of: String.self) { yield in try yield(outcome { try co_yield() }) }
          return [outcome { try co_yield() }, body.next() ?? "end", outcome { try co_yield() }]
        }
      }
      #expect(try await refused.value == ["insideTask", "insideTask", "insideTask"])
      #expect("\(CoroutineError.insideTask)".contains("Task.immediate"))
      // Outside it everything works, also if a Task starts a coroutine immediately.
      #expect(try await onCoroutine { outcome { try co_yield() } } == "()")
      let started = co_launch(start: .immediate) { (currentTask() == nil, outcome { try co_yield() }) }
      let seen = try await started.value
      #expect(seen.0 && seen.1 == "()")
    }
  }

  @Test func `fifty coroutines that wait inside of a catch block each throw their own exception again`() async throws {
    let queue = taggedQueue("catch")
    let jobs = (0..<50).map { index in
      co_launch(on: queue) {
        (0..<50).count { round in
          let number = Int32(index * 50 + round)
          return cexceptions_rethrown(number, 1, { _ in try? co_yield() }, nil) == number
        }
      }
    }
    var right = 0
    for job in jobs { right += try await job.value }
    #expect(right == 2_500)
  }
}

extension Generator where Input == Never, Element == Int {
  /// The next element; a failure of the body's is thrown.
  fileprivate func step(of time: Int) throws -> Int? {
    guard case .yielded(let number) = try step() else { return nil }
    return number
  }
}
