import CLinux
import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

/// The rules of co_pinned; the ways in which a coroutine changes its thread are in WorkerPool/KeptThreadTests.swift.
///
/// Threads are compared by `gettid`: the C library promises the compiler that `pthread_self` returns one value for
/// ever.
@Suite("co_pinned", .timeLimit(.minutes(10)))
struct PinnedTests {
  @Test func `returns the value of its body, and throws its error`() async throws {
    let seen = try await onCoroutine {
      [outcome { try co_pinned { 3 } }, outcome { try co_pinned { throw Oops("body") } }, outcome { try co_yield() }]
    }
    #expect(seen == ["3", "Oops(body)", "()"])
  }

  @Test(arguments: WaitingVerb.parking)
  func `the thread is the same before and after each wait, which ends as always`(verb: WaitingVerb) async throws {
    let started = Gate()
    let job = co_launch {
      try co_pinned {
        let thread = clinux_thread_id()
        started.open()
        return [outcome { try verb.park() }, "\(clinux_thread_id() == thread)"]
      }
    }
    try await onCoroutine { try started.pass() }
    startThread { job.cancel(Oops("stop")) }
    // An actor of another queue would take the coroutine there.
    let first = verb == .isolated ? ["Oops(stop)", "cannotPin"] : ["Oops(stop)"]
    let seen = try await job.value
    #expect(first.contains(seen[0]))
    #expect(seen[1] == "true")
  }

  @Test func `calls nest, and the outermost one sets the coroutine free`() async throws {
    let pool = ownWorkers("nesting", count: 1)
    let seen = try await onCoroutine(on: pool.workers[0].currentQueue) {
      func state() -> [Int] {
        let carrier = Carrier.current!
        // The worker that runs it: a spare one may have taken it over, if the first was kept waiting before it began.
        let (job, worker) = (carrier.pointee.job!, carrier.pointee.scheduler!.takeUnretainedValue())
        return [job.keepsThread ? 1 : 0, worker.keepers, Int(worker.readyQueue.pointee.marks)]
      }
      return try [
        state(),
        co_pinned {
          _ = try co_pinned { state() }
          _ = outcome { try co_pinned { throw Oops("inner") } }
          return state()
        },
        state(),
      ]
    }
    #expect(seen == [[0, 0, 0], [1, 1, 2], [0, 0, 0]])
  }

  @Test func `a switch inside of it throws, and works afterwards`() async throws {
    let queue = taggedQueue("target")
    let host = HostedScheduler(Loop())
    let ledger = Ledger(on: queue)
    let seen = try await onCoroutine {
      let inside = try co_pinned {
        [
          outcome { try co_switch(to: queue) }, outcome { try co_switch(to: host) },
          outcome { try co_isolated(ledger) { _ in } }, currentTag ?? "worker",
        ]
      }
      try co_switch(to: queue)
      return inside + [currentTag ?? "worker"]
    }
    #expect(seen == Array(repeating: "cannotPin", count: 3) + ["worker", "target"])
  }

  @Test func `on a queue, the main queue included, it throws without calling its body`() async throws {
    let trace = Trace()
    for queue in [taggedQueue("serial"), .main, .global(), taggedQueue("concurrent", attributes: .concurrent)] {
      let seen = try await onCoroutine(on: queue) { outcome { try co_pinned { trace("ran") } } }
      #expect(seen == "cannotPin")
      // Started on a thread of another kind, it is not on the queue, and would have to go there.
      let started = co_launch(on: queue, start: .immediate) { outcome { try co_pinned { trace("ran") } } }
      #expect(try await started.value == "cannotPin")
    }
    #expect(trace.all.isEmpty)
    #expect("\(CoroutineError.cannotPin)".contains("launch it without a queue"))
  }

  @Test func `the main queue has no thread after dispatchMain either`() async {
    await #expect(processExitsWith: .exitCode(7)) {
      synchronously {
        DispatchQueue.main.async {
          co_launch(on: .main) {
            try co_yield()
            exit(outcome { try co_pinned {} } == "cannotPin" ? 7 : 1)
          }
        }
        // The exit test's main thread is in dispatchMain, or this is it.
        if clinux_thread_id() == getpid() { dispatchMain() }
        while true { pause() }
      }
    }
  }

  @Test func `outside of a coroutine it throws without calling its body`() async throws {
    let trace = Trace()
    let seen = try await onOwnThread { outcome { try co_pinned { trace("ran") } } }
    let inAsync = await Task { outcome { try co_pinned { trace("ran") } } }.value
    let inHandler = try await onCoroutine {
      let seen = Promise<String>()
      co_launch {}.finally { seen.fulfill(outcome { try co_pinned { trace("ran") } }) }
      return try co_await(seen)
    }
    #expect([seen, inAsync, inHandler] == Array(repeating: "notInCoroutine", count: 3))
    #expect(trace.all.isEmpty)
  }

  @Test func `a cancelled coroutine runs the body, and the next wait throws`() async throws {
    let seen = try await onCoroutine {
      let job = co_launch {
        _ = outcome { try waitForCancellation() }
        return outcome { try co_pinned { outcome { try co_yield() } } }
      }
      job.cancel(Oops("stop"))
      return try? job.join()
    }
    #expect(seen == nil || seen == "Oops(stop)")
  }

  @Test func `children and the bodies of others are not kept`() async throws {
    let seen = try await onCoroutine {
      try co_pinned {
        let queued = co_launch { Carrier.current!.pointee.job!.keepsThread }
        let immediate = co_launch(start: .immediate) { Carrier.current!.pointee.job!.keepsThread }
        let inScope = try co_scope { try $0.launch { Carrier.current!.pointee.job!.keepsThread }.join() }
        return [try queued.join(), try immediate.join(), inScope, Carrier.current!.pointee.job!.keepsThread]
      }
    }
    #expect(seen == [false, false, false, true])
  }

  @Test func `a job that started immediately on another thread first goes to its own`() async throws {
    for _ in 0..<50 {
      let started = try await onOwnThread {
        let here = clinux_thread_id()
        let job = co_launch(start: .immediate) {
          let first = clinux_thread_id()
          return try co_pinned {
            let thread = clinux_thread_id()
            let name = threadName()
            try co_delay(.microseconds(10))
            return [first == here, thread != here, name.hasPrefix("co-worker-"), clinux_thread_id() == thread]
          }
        }
        return try job.blockingWait()
      }
      #expect(started == [true, true, true, true])
    }
  }

  @Test func `in a coroutine that started immediately on its own worker it stays there`() async throws {
    let seen = try await onCoroutine {
      let here = clinux_thread_id()
      let job = co_launch(start: .immediate) {
        try co_pinned {
          let first = clinux_thread_id() == here
          for _ in 0..<10 { try co_yield() }
          return first && clinux_thread_id() == here
        }
      }
      return try job.join()
    }
    #expect(seen)
  }

  // MARK: Generators

  @Test func `a yield inside of it throws, and leaves no trace on the consumer`() async throws {
    let seen = try await onCoroutine {
      let generator = co_sequence(of: Int.self) { yield in
        try yield(1)
        try co_pinned { try yield(2) }
      }
      return [
        outcome { String(describing: generator.next()) }, outcome { try generator.step() },
        "\(Carrier.current!.pointee.job!.keepsThread)", "\(Carrier.current!.pointee.job!.pointee.frames == nil)",
      ]
    }
    #expect(seen == ["Optional(1)", "yieldInsideScope", "false", "true"])
  }

  @Test func `in a generator's body it keeps the stepping coroutine's thread over a wait`() async throws {
    let generator = co_sequence(of: Bool.self) { yield in
      while true {
        let isSame = try co_pinned {
          let thread = clinux_thread_id()
          for _ in 0..<5 { try co_delay(.microseconds(10)) }
          return clinux_thread_id() == thread
        }
        try yield(isSame)
      }
    }
    // Each step is another coroutine, started on a thread of Swift's.
    var steps = generator.asyncElements().makeAsyncIterator()
    for _ in 0..<50 { #expect(try await steps.next() == true) }
  }

  @Test func `in a generator that a plain thread steps it throws`() async throws {
    let seen = try await onOwnThread {
      let generator = co_sequence(of: String.self) { yield in try yield(outcome { try co_pinned {} }) }
      return generator.next()
    }
    #expect(seen == "notInCoroutine")
  }

  @Test func `a pinned coroutine steps generators on its thread`() async throws {
    let seen = try await onCoroutine {
      let generator = co_sequence(of: pid_t.self) { yield in
        for _ in 0..<20 {
          try co_yield()
          try yield(clinux_thread_id())
        }
      }
      return try co_pinned { Set(generator).subtracting([clinux_thread_id()]) }
    }
    #expect(seen.isEmpty)
  }

  // MARK: Hosts and worlds

  @Test func `on the thread of a host it works, and a switch to that host throws as well`() async throws {
    let loop = Loop()
    let host = HostedScheduler(loop)
    let ledger = HostedLedger(host)
    let job = co_launch(on: host, start: .immediate) {
      try co_pinned {
        let thread = clinux_thread_id()
        try co_await { await resumedElsewhere() }
        let balance = try co_isolated(ledger) { ledger in
          try co_yield()
          ledger.balance += 1
          return ledger.balance
        }
        return [
          "\(clinux_thread_id() == thread && loop.isCurrentForCoroutines)", "\(balance)",
          outcome { try co_switch(to: host) },
        ]
      }
    }
    #expect(try await job.value == ["true", "1", "cannotPin"])
  }

  @Test(.inWorlds) func `in a world a worker's coroutine may be pinned, and a queue's may not`() throws {
    let queue = taggedQueue("world")
    let trace = Trace()
    try co_scope { scope in
      for number in 0..<3 {
        scope.launch {
          try co_pinned {
            try co_delay(.milliseconds(number))
            trace("\(outcome { try co_switch(to: queue) })")
          }
          try co_switch(to: queue)
        }
      }
      scope.launch(on: queue) { trace(outcome { try co_pinned {} }) }
    }
    #expect(trace.all == Array(repeating: "cannotPin", count: 4))
    #expect(outcome { try co_pinned { try co_launch(start: .immediate) { try co_pinned { 1 } }.join() } } == "1")
  }

  // MARK: What it is for

  // Without co_pinned, a release build ends with "Recursive call to lock Mutex" (docs/hazards.md). ThreadSanitizer does
  // not see what that Mutex excludes.
  @Test(.enabled(if: !isSanitized)) func `a function may lock a Mutex and wait`() async throws {
    let (counters, rounds) = (Counters(), 500)
    try await onCoroutine {
      try co_scope { scope in
        for number in 0..<4 { scope.launch { try co_pinned { try count(counters, rounds, number) } } }
        // They are woken by coroutines of the other worker.
        for _ in 0..<2 { scope.launch { while counters.sum < 4 * rounds { try co_yield() } } }
      }
    }
    #expect(counters.sum == 4 * rounds)
  }
}

private final class Counters: Sendable {
  let first = Mutex(0)
  let second = Mutex(0)
  /// A call, because the coroutines that read it in a loop wait and keep no thread: inlined there, the address of the
  /// thread's number would be kept over a wait (docs/hazards.md, 18).
  var sum: Int {
    @inline(never) get { first.withLock { $0 } + second.withLock { $0 } }
  }
}

/// Locks, waits, and locks again, in one frame.
@inline(never)
private func count(_ counters: Counters, _ rounds: Int, _ number: Int) throws {
  for round in 0..<rounds {
    if (round + number) % 2 == 0 { counters.first.withLock { $0 += 1 } } else { counters.second.withLock { $0 += 1 } }
    if round % 50 == 0 { try co_delay(.microseconds(20)) } else { try co_yield() }
  }
}
