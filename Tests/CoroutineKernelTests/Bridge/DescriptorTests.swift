import Coroutine
import Glibc
import Testing

@Suite("co_untilReadable on descriptors", .timeLimit(.minutes(10)))
struct DescriptorTests {
  @Test func `readable: suspends until there is something to read`() async throws {
    let pipe = PipePair()
    let trace = Trace()
    try await onSerialQueue {
      let reader = try launchAndPark {
        try co_untilReadable(pipe.reader)
        trace("read \(pipe.get() ?? 0)")
      }
      trace("writing")
      pipe.put(7)
      try reader.join()
    }
    #expect(trace.all == ["writing", "read 7"])
  }

  @Test func `writable: suspends until there is room`() async throws {
    let pipe = PipePair()
    pipe.fill()
    let trace = Trace()
    try await onSerialQueue {
      let writer = try launchAndPark {
        try co_untilWritable(pipe.writer)
        trace("wrote \(pipe.put(1))")
      }
      trace("draining")
      pipe.drain()
      try writer.join()
    }
    #expect(trace.all == ["draining", "wrote true"])
  }

  @Test func `a ready descriptor is ready at once, every time`() async throws {
    let pipe = PipePair()
    pipe.put()
    try await onCoroutine {
      for _ in 0..<100 {
        try co_untilReadable(pipe.reader)
        try co_untilWritable(pipe.writer)
      }
    }
    #expect(pipe.get() == 1)
  }

  @Test func `after EAGAIN the first look is left out, and the poller finds what is ready`() async throws {
    let pipe = PipePair()
    pipe.put()
    let trace = Trace()
    try await onSerialQueue {
      for end in [pipe.reader, pipe.writer] {
        let other = co_launch { trace("meanwhile") }
        if end == pipe.reader {
          try co_untilReadable(end, assumingNotReady: true)
        } else {
          try co_untilWritable(end, assumingNotReady: true)
        }
        trace("ready")
        try other.join()
      }
    }
    // In either order: the poller may be first.
    #expect(trace.all.sorted() == ["meanwhile", "meanwhile", "ready", "ready"])
  }

  @Test func `a closed peer ends the wait, for reading and for writing`() async throws {
    try await onSerialQueue {
      let pipes = [PipePair(), PipePair(), PipePair.sockets()]
      // Their descriptors are closed with them, and not before the last wait.
      defer { withExtendedLifetime(pipes) {} }
      pipes[1].fill()
      let jobs = [
        try launchAndPark { try co_untilReadable(pipes[0].reader) },
        try launchAndPark { try co_untilWritable(pipes[1].writer) },
        try launchAndPark { try co_untilReadable(pipes[2].reader) },
      ]
      pipes[0].closeEnd(pipes[0].writer)
      pipes[1].closeEnd(pipes[1].reader)
      pipes[2].closeEnd(pipes[2].writer)
      for job in jobs { try job.join() }
      // Gone before the wait: that counts as well.
      try co_untilReadable(pipes[0].reader)
      try co_untilWritable(pipes[1].writer)
    }
  }

  @Test func `the descriptor stays with the caller: open and usable after the wait`() async throws {
    let sockets = PipePair.sockets()
    let seen = try await onCoroutine {
      sockets.put(1)
      try co_untilReadable(sockets.reader)
      let first = sockets.get()
      try co_untilWritable(sockets.reader)
      sockets.put(2, into: sockets.reader)
      try co_untilReadable(sockets.writer)
      return [first, sockets.get(from: sockets.writer)]
    }
    #expect(seen == [1, 2])
  }

  @Test func `one descriptor can be waited for in both directions at once`() async throws {
    let sockets = PipePair.sockets()
    sockets.fill()
    let trace = Trace()
    try await onSerialQueue {
      let reader = co_launch {
        try co_untilReadable(sockets.writer)
        trace("readable")
      }
      let writer = co_launch {
        try co_untilWritable(sockets.writer)
        trace("writable")
      }
      try co_yield()
      sockets.put(5, into: sockets.reader)
      try reader.join()
      sockets.drain()
      try writer.join()
    }
    #expect(trace.all == ["readable", "writable"])
  }

  @Test func `several may wait for one descriptor, on one queue and on others`() async throws {
    let pipe = PipePair()
    let jobs = (0..<6).map { n in
      co_launch(on: taggedQueue("\(n % 3)")) { try co_untilReadable(pipe.reader) }
    }
    pipe.put()
    for job in jobs { try await job.value }
  }

  @Test func `a cancelled wait does not affect other waits, and the descriptor can be awaited again`() async throws {
    let seen = try await onSerialQueue {
      let pipe = PipePair()
      let quits = try launchAndPark { try co_untilReadable(pipe.reader) }
      let stays = try launchAndPark { try co_untilReadable(pipe.reader) }
      quits.cancel(Oops("quit"))
      let first = outcome { try quits.join() }
      let again = co_launch { try co_untilReadable(pipe.reader) }
      try co_yield()
      pipe.put()
      return [first, outcome { try stays.join() }, outcome { try again.join() }]
    }
    #expect(seen == ["Oops(quit)", "()", "()"])
  }

  @Test func `a number that is not, or no longer, a descriptor is a typed error`() async {
    // In a process of its own: nothing there takes the number again.
    await #expect(processExitsWith: .success) {
      let pipe = PipePair()
      let closed = fcntl(pipe.reader, F_DUPFD, 800)
      close(closed)
      let seen = try await onCoroutine {
        [-1, Int32.min, Int32.max, closed].flatMap { number in
          [
            outcome { try co_untilReadable(number) }, outcome { try co_untilWritable(number) },
            outcome { try co_untilReadable(number, assumingNotReady: true) },
          ]
        }
      }
      #expect(seen == Array(repeating: "badDescriptor", count: 12))
    }
  }

  @Test func `a number that was closed and reused means the new descriptor`() async throws {
    let (old, new) = (PipePair(), PipePair())
    let number = fcntl(old.reader, F_DUPFD, 820)
    let trace = Trace()
    try await onSerialQueue {
      old.put()
      try co_untilReadable(number)
      old.drain()
      // Closed and given out again in one step: tests beside this one open descriptors too.
      _ = dup2(new.reader, number)
      let job = try launchAndPark {
        try co_untilReadable(number)
        trace("read \(new.get() ?? 0)")
      }
      // The old pipe stays open under its first number; its events do not matter here. The poller has handed them out
      // when it has handed out those of a pipe that was written to later.
      old.put()
      let later = PipePair()
      let marker = try launchAndPark { try co_untilReadable(later.reader) }
      later.put()
      try marker.join()
      trace("writing")
      new.put(9)
      try job.join()
    }
    close(number)
    #expect(trace.all == ["writing", "read 9"])
  }

  @Test func `a regular file is ready at once`() async throws {
    let file = open("/proc/self/exe", O_RDONLY)
    defer { close(file) }
    for assumingNotReady in [false, true] {
      let seen = try await onCoroutine {
        outcome { try co_timeout(.seconds(60)) { try co_untilReadable(file, assumingNotReady: assumingNotReady) } }
      }
      #expect(seen == "()")
    }
  }

  @Test func `two coroutines play a thousand rounds over a pair of sockets`() async throws {
    let sockets = PipePair.sockets()
    let sum = try await onSerialQueue {
      @Sendable func play(_ end: Int32, first: Bool) throws -> Int {
        var sum = 0
        for round in 0..<1_000 {
          let byte = UInt8(truncatingIfNeeded: round)
          if first { sockets.put(byte, into: end) }
          try co_untilReadable(end)
          sum += Int(sockets.get(from: end) ?? 0)
          if !first { sockets.put(byte, into: end) }
        }
        return sum
      }
      let other = co_launch { try play(sockets.writer, first: false) }
      return try play(sockets.reader, first: true) - other.join()
    }
    #expect(sum == 0)
  }
}
