import Dispatch
import Glibc
import Testing

@testable import Coroutine

/// A dump's line about a coroutine: its state, the source and duration of its wait, and its queue.
@Suite("CoroutineRuntime.dump: states", .timeLimit(.minutes(10)))
struct DumpStateTests {
  /// The lines of a dump that `body` takes, in virtual time, without their launch places.
  private func lines(_ body: @escaping @Sendable (_ dump: () -> Void) throws -> Void) async throws -> [String] {
    try await onOwnThread {
      let simulation = Simulation()
      return try simulation.run {
        var text = ""
        try body { text = Simulation.dump }
        return text.split(separator: "\n").map { String($0).replacing(/, launched at .*/, with: "") }
      }
    }
  }

  /// The line of the coroutine `name`, from its name on, with `0x…` for every address and `#…` for every job number.
  private func line(_ name: String, in lines: [String]) -> String? {
    guard let line = lines.first(where: { $0.contains("\"\(name)\" ") && $0.first == "#" }) else { return nil }
    let tail = line[line.firstIndex(of: "\"").unsafelyUnwrapped...]
    return String(tail).replacing(/0x[0-9a-f]+/, with: "0x…").replacing(/#[0-9]+/, with: "#…")
  }

  @Test func `an unstarted, a ready and a running coroutine are distinguished`() async throws {
    let lines = try await lines { dump in
      let gate = Gate()
      co_launch(name: "yields") {
        try co_yield()
        try co_yield()
      }
      co_launch(name: "woken") { try gate.pass() }
      try co_yield()
      try co_delay(.milliseconds(2))
      co_launch(name: "yields later") { try co_yield() }
      try co_yield()
      gate.open()
      co_launch(name: "queued") {}
      dump()
    }
    #expect(line("queued", in: lines) == "\"queued\" not started on world")
    #expect(line("yields later", in: lines) == "\"yields later\" ready on world")
    #expect(line("woken", in: lines) == "\"woken\" ready for at most 2 ms on world")
    #expect(line("body", in: lines) == "\"body\" running on world")
  }

  @Test func `a wait in a channel is shown with the direction, the channel and its count`() async throws {
    let lines = try await lines { dump in
      let (empty, full, unbounded) = (Channel<Int>(), Channel<String>(2), Channel<Int>(.unbounded))
      for text in ["a", "b"] { try full.send(text) }
      co_launch(name: "receives") { _ = try empty.receive() }
      co_launch(name: "sends") { try full.send("c") }
      co_launch(name: "waits without end") { _ = try unbounded.receive() }
      try co_delay(.milliseconds(30))
      dump()
      for channel in [empty, unbounded] { channel.close() }
      _ = full.tryReceive()
    }
    #expect(
      line("receives", in: lines)
        == "\"receives\" waiting to receive (Channel<Int> 0x…, rendezvous) for 30 ms on world"
    )
    #expect(
      line("sends", in: lines)
        == "\"sends\" waiting to send (Channel<String> 0x…, 2 of 2 values buffered) for 30 ms on world"
    )
    #expect(line("waits without end", in: lines)?.contains("(Channel<Int> 0x…, 0 values buffered)") == true)
  }

  @Test func `a wait for a lock is shown with the lock's owner`() async throws {
    let lines = try await lines { dump in
      let (mutex, lock, semaphore) = (FairMutex(), FairReadWriteLock(), FairSemaphore(3))
      let (read, limiter) = (FairReadWriteLock(), RateLimiter(1, per: .seconds(1)))
      co_launch(name: "owns") {
        try mutex.withLock { try lock.withWriteLock { try co_delay(.milliseconds(20)) } }
      }
      try semaphore.acquire(2)
      try limiter.acquire()
      try read.lockRead()
      try co_yield()
      co_launch(name: "wants the mutex") { try mutex.withLock {} }
      co_launch(name: "wants to read") { try lock.withReadLock {} }
      co_launch(name: "wants to write") { try read.withWriteLock {} }
      co_launch(name: "wants permits") { try semaphore.acquire(3) }
      for _ in 0..<2 { co_launch(name: "wants a token") { try limiter.acquire() } }
      try co_delay(.milliseconds(10))
      dump()
      read.unlockRead()
      semaphore.release(2)
    }
    #expect(
      line("wants the mutex", in: lines)
        == "\"wants the mutex\" waiting for a lock (FairMutex 0x…, held by #… \"owns\") for 10 ms on world"
    )
    let reader = line("wants to read", in: lines)
    #expect(reader?.contains("a lock (FairReadWriteLock 0x…, held for writing by #… \"owns\")") == true, "\(lines)")
    let writer = line("wants to write", in: lines)
    #expect(writer?.contains("a lock (FairReadWriteLock 0x…, held by 1 reader)") == true, "\(lines)")
    let permits = line("wants permits", in: lines)
    #expect(permits?.contains("for permits (FairSemaphore 0x…, 1 permits available)") == true, "\(lines)")
    #expect(lines.contains { $0.contains("\"wants a token\" waiting for permits (RateLimiter 0x") }, "\(lines)")
    #expect(line("owns", in: lines) == "\"owns\" waiting for a delay (ends in 10 ms) for 10 ms on world")
  }

  @Test func `a lock that a thread owns is shown so`() async throws {
    let mutex = FairMutex()
    try await onOwnThread { #expect(mutex.tryLock()) }
    let lines = try await lines { dump in
      let job = co_launch(name: "waits for a thread") { try mutex.lock() }
      try co_yield()
      dump()
      job.cancel()
      _ = outcome { try job.join() }
    }
    #expect(line("waits for a thread", in: lines)?.contains("held by a thread") == true, "\(lines)")
  }

  @Test func `a wait for a job or a promise is shown with its name`() async throws {
    let lines = try await lines { dump in
      let (gate, other) = (Gate(), co_launch(name: "the other") { try co_delay(.milliseconds(9)) })
      co_launch(name: "joins") { try other.join() }
      co_launch(name: "awaits") { try gate.pass() }
      try co_yield()
      dump()
      gate.open()
    }
    #expect(line("joins", in: lines)?.contains("waiting for a job (#… \"the other\")") == true, "\(lines)")
    let awaiting = line("awaits", in: lines)
    #expect(awaiting?.contains("for a promise (Promise<()> 0x…, created at") == true, "\(lines)")
  }

  @Test func `a waiting select is shown with its cases`() async throws {
    let lines = try await lines { dump in
      let (numbers, words, mutex) = (Channel<Int>(), Channel<String>(1), FairMutex())
      let (gate, semaphore) = (Gate(), FairSemaphore(0))
      try words.send("full")
      try mutex.lock()
      let other = co_launch(name: "other") { try co_delay(.milliseconds(50)) }
      let job = co_launch(name: "selects") {
        try co_select {
          numbers.onReceive { _ in }
          words.onSend("no") {}
          mutex.onLock {}
          semaphore.onAcquire {}
          gate.onAwait { _ in }
          other.onAwait { _ in }
          SelectCase.onTimeout(.milliseconds(40)) {}
        }
      }
      let idle = co_launch(name: "nothing but time") { try co_select { SelectCase.onTimeout(.milliseconds(10)) {} } }
      try co_delay(.milliseconds(5))
      dump()
      job.cancel()
      mutex.unlock()
      try idle.join()
    }
    let start = "\"selects\" waiting in a select (7 cases: receive from Channel<Int> 0x…, rendezvous; "
    let text = line("selects", in: lines) ?? ""
    #expect(text.hasPrefix(start), "\(lines)")
    for part in [
      "; send to Channel<String> 0x…, 1 of 1 values buffered; lock FairMutex 0x…, held by #… \"body\"; ",
      "; acquire FairSemaphore 0x…, 0 permits available; await Promise<()> 0x…, created at ",
      "; await job #… \"other\"; timeout of 40 ms) for 5 ms on world",
    ] {
      #expect(text.contains(part), "\(text)")
    }
    #expect(line("nothing but time", in: lines)?.contains("waiting in a select (1 case) for 5 ms") == true, "\(lines)")
  }

  @Test func `a wait for a descriptor is shown with its number`() async throws {
    let pipe = PipePair()
    let queue = taggedQueue("dump.descriptor")
    let job = co_launch(on: queue, name: "reads a pipe") { try co_untilReadable(pipe.reader) }
    var line = ""
    while !line.contains("waiting") {
      line = try await onBlock(of: queue) { dumped("reads a pipe", in: dumpOfOwnQueue()) }
    }
    #expect(line.contains("waiting for a readable descriptor (\(pipe.reader))"), "\(line)")
    pipe.put()
    try await job.value
  }

  @Test func `timers that a busy queue does not reach are overdue`() async throws {
    let lines = try await onCoroutine(on: taggedQueue("dump.overdue")) {
      let job = co_launch(name: "sleeps too long") { try co_delay(.milliseconds(1)) }
      try co_yield()
      // No suspension: the timer cannot fire.
      var text = ""
      while !text.contains("timers overdue by") || !text.contains("(overdue by") {
        text = Dump.text(of: [QueueHost.current.unsafelyUnwrapped])
      }
      try job.join()
      return text.split(separator: "\n").map(String.init)
    }
    #expect(lines.last?.contains("ms on coroutine.tests.dump.overdue, kept by #") == true, "\(lines)")
    #expect(line("sleeps too long", in: lines)?.contains("waiting for a delay (overdue by ") == true, "\(lines)")
  }

  @Test func `what keeps a queue is not known by the label, which another one may have`() async {
    await #expect(processExitsWith: .success) {
      let (late, other) = (DispatchQueue(label: "twin"), DispatchQueue(label: "twin"))
      let isOver = Flag()
      let spinner = co_launch(on: other, name: "on the other one") { while !isOver.isRaised {} }
      var texts: [String] = []
      // Again, because the timer may fire before the block has the queue.
      while texts.isEmpty {
        let (release, isBlocked) = (DispatchSemaphore(value: 0), Flag())
        let sleeper = try await co_launch(on: late) {
          let sleeper = co_launch { try co_delay(.milliseconds(20)) }
          try co_yield()
          late.async {
            isBlocked.raise()
            release.wait()
          }
          return sleeper
        }.value
        while !isBlocked.isRaised { sched_yield() }
        while texts.isEmpty, CoroutineRuntime.liveCount > 1 {
          let both = [CoroutineRuntime.dump(.list), CoroutineRuntime.dump(.stacks)]
          if both.allSatisfy({ $0.contains("\ntimers overdue by ") }) { texts = both }
        }
        release.signal()
        try await sleeper.value
      }
      #expect(texts.allSatisfy { !$0.contains(", kept by ") }, "\(texts)")
      isOver.raise()
      try await spinner.value
    }
  }

  @Test(.enabled(if: Processors.usable > 1, "a stolen job needs a second worker"))
  func `the worker is the coroutine's current one, not the one of its launch`() async throws {
    let gate = Gate()
    let moved = Locked("")
    let pool = ownWorkers("dump")
    let stolen = try await onCoroutine(on: pool.workers[0].currentQueue) {
      let isThere = Flag()
      let job = co_launch(name: "dump: stolen") {
        moved.current = Carrier.current?.pointee.scheduler?.takeUnretainedValue().label ?? ""
        isThere.raise()
        try gate.pass()
      }
      // Two ready jobs, and no suspension here: another worker takes one.
      co_launch {}
      while !isThere.isRaised { sched_yield() }
      return job
    }
    let born = stolen.record.pointee.home.takeUnretainedValue().label
    #expect(born != moved.current)
    var line = ""
    while !line.contains("waiting for a promise") {
      await Task.yield()
      line = dumped("dump: stolen", in: Dump.text(of: pool.workers))
    }
    #expect(line.contains(" on \(moved.current), launched at"), "\(line), launched on \(born)")
    gate.open()
    try await stolen.value
  }

  @Test func `a computing coroutine is shown as running, on whatever thread the dump is taken`() async throws {
    let (started, over) = (Flag(), Flag())
    let queue = taggedQueue("dump.computing")
    let job = co_launch(on: queue, name: "dump: computes") {
      started.raise()
      while !over.isRaised { sched_yield() }
    }
    while !started.isRaised { await Task.yield() }
    var line = ""
    while !line.contains("running for at most ") { line = dumped("dump: computes", in: dump(of: queue)) }
    over.raise()
    try await job.value
    // The thread is named after 50 ms, if another test of this process has had the queues watched for stalls.
    let end = #/ ms(, .*on thread \d+)? on coroutine\.tests\.dump\.computing, launched at/#
    #expect(line.contains(end), "\(line)")
  }
}

/// The line of the coroutine `name` in a dump, or "".
private func dumped(_ name: String, in dump: String) -> String {
  dump.split(separator: "\n").first { $0.contains("\"\(name)\" ") }.map(String.init) ?? ""
}
