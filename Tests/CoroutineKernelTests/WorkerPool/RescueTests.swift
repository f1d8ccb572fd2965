import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

/// Two workers, one of which computes: the other one takes over what waits there.
@Suite("A worker that computes for long", .timeLimit(.minutes(10)), .enabled(if: Processors.usable > 1))
struct RescueTests {
  /// The pool lives for ever, as the shared one does.
  private let group = ownWorkers("rescue")
  private var busy: Scheduler { group.workers[0] }

  // The watchdog looks at the workers by the real clock.
  @Test(.tags(.realClock))
  func `does not keep a deadline from ending the wait of a job that is parked there`() async throws {
    try await whileComputing(expects: "TimeoutError") {
      do {
        try co_timeout(.milliseconds(5)) { try waitForCancellation() }
        return "no error"
      } catch {
        return name(of: error)
      }
    } then: { _ in
    }
  }

  @Test func `does not keep cancel() from ending the wait of a job that is parked there`() async throws {
    try await whileComputing(expects: "Oops(stop)") {
      outcome { try waitForCancellation() }
    } then: { job in
      startThread { job.cancel(Oops("stop")) }
    }
  }

  @Test func `does not keep a shielded job's children from being cancelled with it`() async throws {
    try await whileComputing(expects: "CancellationError") {
      let gate = Gate()
      let hasStarted = Flag()
      return outcome {
        try co_scope { scope in
          let child = scope.launch {
            hasStarted.raise()
            do {
              try waitForCancellation()
            } catch {
              gate.open()
              throw error
            }
          }
          // Cancelled before its start, the child would not run, and nobody would open the gate.
          while !hasStarted.isRaised { try co_yield() }
          try co_shield { try gate.pass() }
          try child.join()
        }
      }
    } then: { job in
      startThread { job.cancel() }
    }
  }

  // Its first interrupt stays in the inbox of the queue that it has left, so the second one is work.
  @Test func `lets cancel() end the wait of a job that has left a blocked queue`() async throws {
    let isOver = Flag()
    let job = co_launch(on: taggedQueue("former")) { [busy] in
      let gate = Gate()
      co_launch {
        try gate.pass()
        spin(until: isOver, for: .seconds(120))
      }
      try co_yield()
      // The other coroutine runs as soon as this one waits: the queue does not come to its inbox.
      gate.open()
      try co_scope { scope in
        let isSent = Flag()
        startThread {
          scope.cancel()
          isSent.raise()
        }
        spin(until: isSent, for: .seconds(120))
      }
      repeat { try co_switch(to: busy.currentQueue!) } while !busy.isRunningHere
      return outcome { try waitForCancellation() }
    }
    let computing = co_launch(on: busy.currentQueue) { [busy] in
      while !isParked(job.record, on: busy) {
        try co_yield()
        try co_switch(to: busy.currentQueue!)
      }
      startThread { job.cancel() }
      let end = Clock.now + 120_000_000_000
      while !job.completion.isSettled, Clock.now < end { sched_yield() }
      return job.completion.isSettled
    }
    #expect(try await computing.value, "its wait ended only when the worker was free again")
    isOver.raise()
    #expect(try await job.value == "CancellationError")
  }

  @Test func `does not lose a delivery to a job whose interrupt is handled at the same time`() async throws {
    // The last rounds differ from the first by two milliseconds, however many there are.
    let rounds = isSanitized ? 25 : 100
    for round in 0..<rounds {
      let gate = Gate()
      let isOver = Flag()
      let waiter = Locked<Job<Void>?>(nil)
      let computing = co_launch(on: busy.currentQueue) { [busy] in
        let job = try launchParked(on: busy) { co_launch { try co_shield { try gate.pass() } } }
        waiter.withLock { $0 = job }
        return spin(until: isOver, for: .seconds(120))
      }
      // The interrupt finds a shield; the delivery comes when a rescuer is about to inspect.
      try await onOwnThread {
        while waiter.current == nil { sched_yield() }
        waiter.current?.cancel()
        let end = Clock.now + 3_500_000 + UInt64(round * 2_000_000 / rounds)
        while Clock.now < end {}
        gate.open()
        try? waiter.current?.blockingWait()
        isOver.raise()
      }
      #expect(try await computing.value)
    }
  }

  @Test func `does not keep a coroutine that comes back from an actor's queue`() async throws {
    let blocked = try await BlockedQueue()
    let ledger = Ledger(on: blocked.queue)
    try await whileComputing(expects: "()") {
      outcome { try co_isolated(ledger) { $0.balance += 1 } }
    } then: { _ in
      startThread { blocked.release() }
    }
  }

  @Test func `does not keep handlers that are attached there from running, in their order`() async throws {
    let order = Locked<[Int]>([])
    let all = Flag()
    let (wasSeenTo, count) = try await co_launch(on: busy.currentQueue) {
      let settled = Promise<Int>.value(1)
      let job = co_launch {}
      try job.join()
      let count = 300
      for number in 0..<count {
        let body: @Sendable () -> Void = {
          order.withLock { $0.append(number) }
          if number == count - 1 { all.raise() }
        }
        switch number % 3 {
        case 0: _ = settled.then { _ in body() }
        case 1: _ = settled.tap { _ in body() }
        default: job.finally(body)
        }
      }
      return (spin(until: all, for: .seconds(120)), count)
    }
    .value
    #expect(wasSeenTo, "they ran only when the worker was free again")
    #expect(order.current == Array(0..<count))
  }

  @Test func `runs the handlers of one promise in the order of attaching, whichever worker attaches them`() async throws
  {
    let count = 40
    for _ in 0..<50 {
      let order = Locked<[Int]>([])
      let promise = Promise<Int>()
      let all = Promise<Void>()
      try await onOwnThread { [group] in
        for number in 0..<count {
          try co_launch(on: group.workers[number % 2].currentQueue) {
            _ = promise.then { _ in
              order.withLock { $0.append(number) }
              if number == count - 1 { all.fulfill(()) }
            }
            if number == count / 2 { promise.fulfill(1) }
          }
          .blockingWait()
        }
      }
      try await onCoroutine { try co_await(all) }
      #expect(order.current == Array(0..<count))
    }
  }

  /// Runs `body` in a job that parks on the busy worker, then computes there until that job has ended.
  private func whileComputing(
    expects expected: String,
    _ body: @escaping @Sendable () -> String,
    then act: @escaping @Sendable (AnyJob) -> Void,
    sourceLocation: SourceLocation = #_sourceLocation
  ) async throws {
    let computing = co_launch(on: busy.currentQueue) { [busy] in
      let job = try launchParked(on: busy) { co_launch { body() } }
      act(job)
      let end = Clock.now + 120_000_000_000
      while !job.completion.isSettled, Clock.now < end { sched_yield() }
      return (job.completion.isSettled, try job.join())
    }
    let (wasSeenTo, outcome) = try await computing.value
    #expect(wasSeenTo, "its wait ended only when the worker was free again", sourceLocation: sourceLocation)
    #expect(outcome == expected, sourceLocation: sourceLocation)
  }
}

/// Launches jobs until one of them waits on `worker`, the caller's; others may be stolen first, and are ignored.
private func launchParked<Output>(on worker: Scheduler, _ launch: () -> Job<Output>) throws -> Job<Output> {
  while true {
    try co_switch(to: worker.currentQueue!)
    let job = launch()
    while !job.record.seemsWaiting, !job.completion.isSettled { try co_yield() }
    if isParked(job.record, on: worker), !job.completion.isSettled { return job }
    job.cancel()
  }
}

/// Whether a job waits on `worker`, which runs the caller, so that the job has left its stack.
private func isParked(_ job: JobRef, on worker: Scheduler) -> Bool {
  let place = job.pointee.scheduler.load(ordering: .acquiring).toOpaque()
  return place == Unmanaged.passUnretained(worker).toOpaque() && worker.isRunningHere && job.seemsWaiting
}

/// Blocks the thread, as a long computation does; returns whether the flag was raised in time.
@discardableResult
private func spin(until flag: Flag, for duration: Duration) -> Bool {
  let end = duration.deadline(after: Clock.now)
  while !flag.isRaised, Clock.now < end { sched_yield() }
  return flag.isRaised
}
