import CTestSupport
import CoroutineTesting
import Dispatch
import Glibc
import Testing

@testable import Coroutine

/// Whether a coroutine of the caller's queue waits for a descriptor.
///
/// Not by a dump of everything, which holds the jobs of the tests beside this one for a moment.
private func isWaitedForHere(_ number: Int32) -> Bool {
  let dump = dumpOfOwnQueue()
  return ["readable", "writable"].contains { dump.contains("for a \($0) descriptor (\(number))") }
}

@Suite("Waiting for descriptors: several waiters at once", .timeLimit(.minutes(10)))
struct DescriptorCrowdTests {
  @Test func `all readers are woken, and those that find nothing wait again`() async throws {
    let pipe = PipePair()
    let trace = Trace()
    try await onSerialQueue {
      let readers = (0..<5).map { index in
        co_launch {
          while true {
            try Descriptor(pipe.reader).wait(until: .reading)
            guard let byte = pipe.get() else { continue }
            trace("\(index) read \(byte)")
            return
          }
        }
      }
      try co_yield()
      #expect(isWaitedForHere(pipe.reader))
      for byte in 1...5 {
        pipe.put(UInt8(byte))
        // The coroutine that has read writes the next byte, so that the others wait in between.
        while trace.count < byte { try co_yield() }
      }
      for reader in readers { try reader.join() }
      #expect(!isWaitedForHere(pipe.reader))
    }
    let lines = trace.all
    #expect(lines.map { $0.suffix(1) } == ["1", "2", "3", "4", "5"])
    #expect(Set(lines.map { $0.prefix(1) }).count == 5)
  }

  @Test func `an event for one direction leaves the other one waiting`() async throws {
    let sockets = PipePair.sockets()
    // Nothing to read for the reader, no room for the writer.
    sockets.fill()
    try await onSerialQueue {
      let end = Descriptor(sockets.writer)
      let reader = co_launch { try end.wait(until: .reading) }
      let writer = co_launch { try end.wait(until: .writing) }
      try co_yield()
      sockets.put(1, into: sockets.reader)
      try reader.join()
      #expect(!writer.isFinished)
      #expect(isWaitedForHere(sockets.writer))
      sockets.drain()
      try writer.join()
      #expect(!isWaitedForHere(sockets.writer))
    }
  }

  @Test func `waiters of both directions leave in any order`() async throws {
    let sockets = PipePair.sockets()
    sockets.fill()
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
      try await onSerialQueue {
        let jobs = (0..<4).map { index in
          co_launch {
            try Descriptor(sockets.writer).wait(until: index < 2 ? .reading : .writing)
          }
        }
        try co_yield()
        for index in order {
          #expect(isWaitedForHere(sockets.writer))
          jobs[index].cancel()
          #expect(outcome { try jobs[index].join() } == "CancellationError")
        }
        #expect(!isWaitedForHere(sockets.writer))
      }
    }
  }

  @Test func `a coroutine that is woken and cancelled at once takes no event from other waiters`() async throws {
    let pipe = PipePair()
    try await onSerialQueue {
      let readers = (0..<10).map { _ in co_launch { try co_untilReadable(pipe.reader) } }
      try co_yield()
      pipe.put()
      for reader in readers.dropLast() { reader.cancel() }
      try readers[9].join()
      for reader in readers.dropLast() { _ = outcome { try reader.join() } }
    }
  }

  @Test func `a dump shows the descriptor that a parked coroutine waits for`() async throws {
    let sockets = PipePair.sockets()
    sockets.fill()
    let dump = try await onSerialQueue {
      let jobs = [
        co_launch(name: "reads a socket") { try co_untilReadable(sockets.writer) },
        co_launch(name: "writes a socket") { try co_untilWritable(sockets.writer) },
      ]
      try co_yield()
      defer { for job in jobs { job.cancel() } }
      return dumpOfOwnQueue()
    }
    let lines = dump.split(separator: "\n")
    #expect(lines.contains { $0.contains("reads a socket") && $0.contains("readable") })
    #expect(lines.contains { $0.contains("writes a socket") && $0.contains("writable") })
  }

  @Test func `a world waits for a descriptor instead of seeing a deadlock`() async throws {
    let pipe = PipePair()
    let rounds = try await onOwnThread {
      try Simulation(seed: 3).run {
        let reader = co_launch {
          var rounds = 0
          while rounds < 20 {
            try World.outside { try co_untilReadable(pipe.reader) }
            while pipe.get() != nil { rounds += 1 }
          }
          return rounds
        }
        for _ in 0..<20 {
          try co_yield()
          pipe.put()
        }
        return try reader.join()
      }
    }
    #expect(rounds == 20)
  }

  @Test func `a thousand descriptors are awaited at once, and each wakes its own waiter`() async {
    // In a separate process, because so many would use the numbers that other tests need.
    await #expect(processExitsWith: .success) {
      _ = cts_limit_descriptors(4_096)
      let pipes = (0..<1_000).map { _ in PipePair() }
      let sum = try await onSerialQueue {
        let readers = pipes.map { pipe in
          co_launch {
            try Descriptor(pipe.reader).wait(until: .reading)
            return Int(pipe.get() ?? 0)
          }
        }
        try co_yield()
        for (index, pipe) in pipes.enumerated().reversed() { pipe.put(UInt8(index % 256)) }
        return try readers.map { try $0.join() }
      }
      let wrong = sum.enumerated().filter { $0.element != $0.offset % 256 }
      #expect(wrong.isEmpty)
    }
  }

  @Test func `an echo server serves two hundred clients at once`() async throws {
    let echoed = try await onCoroutine {
      let clients = (0..<200).map { index in
        let sockets = PipePair.sockets()
        co_launch { try Echo.serve(sockets.writer) }
        return co_launch {
          defer { sockets.closeEnd(sockets.reader) }
          return try Echo.talk(sockets.reader, rounds: 20, seed: index)
        }
      }
      return try clients.reduce(0) { try $0 + $1.join() }
    }
    #expect(echoed == 200 * 20)
  }
}

/// An echo server that runs until its client disconnects, and a client that checks it.
private enum Echo {
  static func serve(_ socket: Int32) throws {
    var block = [UInt8](repeating: 0, count: 512)
    while true {
      let count = read(socket, &block, block.count)
      if count == 0 { return }
      if count < 0 {
        try Descriptor(socket).wait(until: .reading)
      } else {
        try send(block[..<count], to: socket)
      }
    }
  }

  /// Returns the number of rounds with a correct echo.
  static func talk(_ socket: Int32, rounds: Int, seed: Int) throws -> Int {
    var good = 0
    for round in 0..<rounds {
      let message = (0..<64).map { UInt8(truncatingIfNeeded: seed &* 31 &+ round &* 7 &+ $0) }
      try send(message[...], to: socket)
      var answer: [UInt8] = []
      var block = [UInt8](repeating: 0, count: 64)
      while answer.count < message.count {
        try Descriptor(socket).wait(until: .reading)
        let count = read(socket, &block, message.count - answer.count)
        if count > 0 { answer += block[..<count] }
      }
      if answer == message { good += 1 }
    }
    return good
  }

  private static func send(_ bytes: ArraySlice<UInt8>, to socket: Int32) throws {
    var rest = bytes
    while !rest.isEmpty {
      let count = rest.withUnsafeBytes { write(socket, $0.baseAddress, $0.count) }
      if count > 0 { rest = rest.dropFirst(count) } else { try Descriptor(socket).wait(until: .writing) }
    }
  }
}
