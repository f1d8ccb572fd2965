import Coroutine
import Dispatch
import Glibc
import Testing

// In processes of their own: a dump of everything lists, and holds for a moment, the coroutines of all tests.
@Suite("CoroutineRuntime.dump and liveCount", .timeLimit(.minutes(10)))
struct DumpTests {
  @Test func `lists a parked coroutine by id, name, queue and launch site`() async {
    await #expect(processExitsWith: .success) {
      let gate = Gate()
      let started = Gate()
      let queue = DispatchQueue(label: "dump.queue.label")
      let job = co_launch(on: queue, name: "dumped by name") {
        started.open()
        try gate.pass()
      }
      try await onCoroutine { try started.pass() }
      let dump = CoroutineRuntime.dump()
      gate.open()
      try await job.value
      #expect(dump.contains("dumped by name"), "\(dump)")
      #expect(dump.contains("\(job.id)"), "\(dump)")
      #expect(dump.contains("dump.queue.label"), "\(dump)")
      #expect(dump.contains("DumpTests.swift"), "\(dump)")
    }
  }

  @Test func `lists the calling coroutine, and unstarted ones`() async {
    await #expect(processExitsWith: .success) {
      let dump = try await onSerialQueue {
        let job = co_launch(name: "dump: the asking one") {
          let queued = co_launch(name: "dump: the queued one") {}
          let dump = CoroutineRuntime.dump()
          try queued.join()
          return dump
        }
        return try job.join()
      }
      #expect(dump.contains("dump: the asking one"), "\(dump)")
      #expect(dump.contains("dump: the queued one"), "\(dump)")
    }
  }

  @Test(arguments: [
    ("nul: before\0after", #"nul: before\0after"#), ("\0nul: first and last\0", #"\0nul: first and last\0"#),
    ("nul: two\0\0in a row", #"nul: two\0\0in a row"#), ("nul: none", "nul: none"),
  ])
  func `a name with NUL is complete in the dump, in reports and in the job`(_ name: String, _ printed: String)
    async throws
  {
    let errors = UnhandledErrors()
    let (dump, known) = try await onSerialQueue {
      let job = co_launch(name: name) { throw errors.failure("named") }
      return (dumpOfOwnQueue(), job.name)
    }
    #expect(known == name)
    #expect(dump.contains("\"\(printed)\""), "\(dump)")
    #expect(try await errors.jobs(count: 1)[0].hasPrefix("\"\(printed)\" "))
  }

  @Test func `does not list ended coroutines`() async {
    await #expect(processExitsWith: .success) {
      let dump = try await onSerialQueue {
        try co_launch(name: "dump: ended by return") {}.join()
        let cancelled = co_launch(name: "dump: ended by cancellation") { try waitForCancellation() }
        try co_yield()
        cancelled.cancel()
        _ = outcome { try cancelled.join() }
        try co_yield()
        return CoroutineRuntime.dump()
      }
      #expect(!dump.contains("dump: ended by return"), "\(dump)")
      #expect(!dump.contains("dump: ended by cancellation"), "\(dump)")
    }
  }

  @Test func `can be taken on any thread while coroutines start and end`() async {
    await #expect(processExitsWith: .success) {
      let over = Flag()
      let busy = (0..<4).map { n in
        co_launch(on: taggedQueue("busy \(n)")) {
          while !over.isRaised { try co_launch(name: "short") {}.join() }
        }
      }
      try await onOwnThread {
        for _ in 0..<50 {
          if CoroutineRuntime.dump().isEmpty { throw Oops("an empty dump") }
        }
      }
      over.raise()
      for job in busy { try await job.value }
    }
  }

  @Test func `can be taken while queues come and go`() async {
    // The alarm ends a process that hangs.
    await #expect(processExitsWith: .success) {
      alarm(550)
      let over = Flag()
      let busy = (0..<3).map { number in
        co_launch {
          while !over.isRaised { try co_launch(on: taggedQueue("brief \(number)")) { try co_yield() }.join() }
        }
      }
      try await onOwnThread {
        let rounds = isSanitized ? 300 : 3_000
        for _ in 0..<rounds where CoroutineRuntime.dump().isEmpty { throw Oops("an empty dump") }
      }
      over.raise()
      for job in busy { try await job.value }
    }
  }

  @Test func `liveCount counts the coroutines that have not ended, and returns to zero`() async throws {
    // In a separate process, because other tests have coroutines too.
    await #expect(processExitsWith: .success) {
      #expect(CoroutineRuntime.liveCount == 0)
      let gate = Gate()
      let jobs = (0..<100).map { _ in co_launch { try gate.pass() } }
      #expect(CoroutineRuntime.liveCount == 100)
      gate.open()
      for job in jobs { try await job.value }
      // A job's value may be there a moment before its stack is free.
      while CoroutineRuntime.liveCount > 0 { await Task.yield() }
    }
  }

  @Test func `is written to standard error at each SIGUSR2`() async throws {
    // In a process of its own, whose standard error the test reads.
    await #expect(processExitsWith: .success) {
      let pipe = PipePair()
      let gate = Gate()
      let job = co_launch(name: "seen by signal") { try gate.pass() }
      CoroutineRuntime.dumpOnSignal()
      CoroutineRuntime.dumpOnSignal()
      let standardError = dup(STDERR_FILENO)
      dup2(pipe.writer, STDERR_FILENO)
      for _ in 0..<200 {
        kill(getpid(), SIGUSR2)
        // The line of the one coroutine is the last: once it is there, the dump has been written.
        var text = ""
        while !text.contains("DumpTests.swift:") || !text.hasSuffix("\n") {
          try await onCoroutine { try co_timeout(.seconds(300)) { try co_untilReadable(pipe.reader) } }
          while let byte = pipe.get() { text.unicodeScalars.append(Unicode.Scalar(byte)) }
        }
        #expect(text.contains("seen by signal"))
      }
      dup2(standardError, STDERR_FILENO)
      gate.open()
      try await job.value
    }
  }

  @Test func `is whole if standard error is full and does not block, however many coroutines there are`() async {
    // The alarm ends a process in which a part is missing.
    await #expect(processExitsWith: .success) {
      alarm(550)
      let (pipe, gate, count) = (PipePair(), Gate(), 3_000)
      // F_SETPIPE_SZ: to a page, however large that is.
      _ = fcntl(pipe.writer, 1_031, 4_096)
      let jobs = (0..<count).map { _ in co_launch(name: "one of many") { try gate.pass() } }
      settle(count, stacks: false)
      CoroutineRuntime.dumpOnSignal()
      let standardError = dup(STDERR_FILENO)
      dup2(pipe.writer, STDERR_FILENO)
      kill(getpid(), SIGUSR2)
      var writer = pollfd(fd: pipe.writer, events: Int16(POLLOUT), revents: 0)
      while poll(&writer, 1, 0) != 0 { sched_yield() }
      var (text, lines): ([UInt8], Int) = ([], 0)
      while lines <= count {
        guard let byte = pipe.get() else {
          sched_yield()
          continue
        }
        text.append(byte)
        if byte == 10 { lines += 1 }
      }
      dup2(standardError, STDERR_FILENO)
      let dump = String(decoding: text, as: UTF8.self).split(separator: "\n")
      #expect(dump.first == "3000 live coroutines")
      #expect(dump.dropFirst().allSatisfy { $0.contains(" \"one of many\" waiting for a promise ") })
      gate.open()
      for job in jobs { try await job.value }
    }
  }

  @Test func `is written at SIGUSR2 while no queue has a thread left`() async {
    // The alarm ends a process in which none is written.
    await #expect(processExitsWith: .exitCode(7)) {
      alarm(550)
      var ends: [Int32] = [-1, -1]
      guard pipe(&ends) == 0 else { exit(1) }
      CoroutineRuntime.dumpOnSignal()
      // More than Dispatch has threads, for each kind of its queues.
      for number in 0..<300 {
        for qos in [DispatchQoS.userInitiated, .default] {
          DispatchQueue(label: "stuck \(number)", qos: qos).async { while true { pause() } }
        }
      }
      dup2(ends[1], STDERR_FILENO)
      kill(getpid(), SIGUSR2)
      var text = ""
      var byte: UInt8 = 0
      while !text.contains("live coroutine"), read(ends[0], &byte, 1) == 1 {
        text.unicodeScalars.append(Unicode.Scalar(byte))
      }
      exit(7)
    }
  }
}
