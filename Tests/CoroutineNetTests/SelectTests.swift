import Dispatch
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Selecting sockets", .timeLimit(.minutes(10)))
struct SelectTests {
  private func choose(_ connection: Connection, or time: Duration = .milliseconds(5)) throws -> String {
    try co_select {
      connection.onReadable { "readable" }
        .onTimeout(time) { "timeout" }
    }
  }

  @Test func `a connection is readable when bytes are there, or the end`() async throws {
    try await onCoroutine {
      for isTCP in [true, false] {
        let tcp = try TCPPair()
        let local = try Connection.pair()
        let (one, other) = isTCP ? (tcp.client, tcp.server) : local
        #expect(try choose(other) == "timeout")
        try one.write([1])
        #expect(try choose(other, or: .seconds(60)) == "readable")
        #expect(try choose(other, or: .seconds(60)) == "readable")
        #expect(try other.read(upTo: 100) == [1])
        #expect(try choose(other) == "timeout")
        let waiting = co_launch { try choose(other, or: .seconds(60)) }
        try other.untilAwaited(.reading)
        try one.shutdownWrite()
        #expect(try waiting.join() == "readable")
        #expect(try other.read(upTo: 100) == [])
      }
    }
  }

  @Test func `a select that does not wait sees what the poller has not reported yet`() async throws {
    // A worker takes its events between coroutines, and nobody suspends here between the write and the poll.
    let pool = Unmanaged.passRetained(WorkerPool(count: 1, label: "coroutine.tests.polls")).takeUnretainedValue()
    try await co_launch(on: pool.workers[0].currentQueue) {
      let polls: [(Connection) throws -> String] = [
        { connection in
          try co_select {
            connection.onReadable { "readable" }
              .otherwise { "otherwise" }
          }
        },
        { connection in
          try co_select(biased: true) {
            connection.onReadable { "readable" }
              .onTimeout(.zero) { "timeout" }
          }
        },
      ]
      for poll in polls {
        let (one, other) = try Connection.pair()
        // Watched, and known to have nothing.
        #expect(try choose(other) == "timeout")
        #expect(try poll(other) != "readable")
        // A reader that waits is woken by it as well.
        let reader = co_launch { try other.read(upTo: 1) }
        try other.untilAwaited(.reading)
        try one.write([1, 2])
        #expect(try poll(other) == "readable")
        #expect(try reader.join() == [1])
        #expect(try other.read(upTo: 1) == [2])
        #expect(try choose(other) == "timeout")
        try one.write([3])
        #expect(try poll(other) == "readable")
        #expect(try other.read(upTo: 1) == [3])
      }
    }
    .value
  }

  @Test func `a closed connection ends a select with an error`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      let waiting = co_launch { netError { try choose(one, or: .seconds(60)) } }
      try one.untilAwaited(.reading)
      one.close()
      #expect(try waiting.join() == .closed)
      #expect(throws: NetError.closed) { try choose(one) }
      withExtendedLifetime(other) {}
    }
  }

  @Test func `a case that was not chosen leaves no waiter`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      for _ in 0..<5 {
        #expect(try choose(one) == "timeout")
        #expect(!one.socket.isAwaited(.reading))
        let chosen = try co_select {
          one.onReadable { 1 }
            .otherwise { 2 }
        }
        #expect(chosen == 2)
        #expect(!one.socket.isAwaited(.reading))
      }
      let job = co_launch { try choose(one, or: .seconds(60)) }
      try one.untilAwaited(.reading)
      job.cancel()
      #expect(throws: CancellationError.self) { try job.join() }
      #expect(!one.socket.isAwaited(.reading))
      // A reader that waits beside a select stays.
      let reader = co_launch { try one.read(upTo: 1) }
      try one.untilAwaited(.reading)
      #expect(try choose(one) == "timeout")
      #expect(one.socket.isAwaited(.reading))
      try other.write([1])
      #expect(try reader.join() == [1])
    }
  }

  @Test func `a server loop accepts, or is told to stop`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      let stop = Channel<Void>()
      let loop = co_launch {
        var count = 0
        while true {
          let isOver = try co_select {
            listener.onAccept { connection in
              try connection.write([UInt8(count)])
              count += 1
              return false
            }
            stop.onReceive { _ in true }
          }
          if isOver { return count }
        }
      }
      for index in 0..<50 { #expect(try Connection.connect(to: listener.address).readAll() == [UInt8(index)]) }
      stop.close()
      #expect(try loop.join() == 50)
    }
  }

  @Test func `a closed listener ends a select with an error, before it and while it waits`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      let waiting = co_launch { netError { try co_select { listener.onAccept { _ in } } } }
      try until { listener.socket.isAwaited(.reading) }
      listener.close()
      #expect(try waiting.join() == .closed)
      #expect(throws: NetError.closed) { try co_select { listener.onAccept { _ in } } }
      // Another case may be chosen although the listener is closed.
      let answer = Promise.value(7)
      let chosen = try co_select(biased: true) {
        answer.onAwait { try $0.get() }
        listener.onAccept { _ in 0 }
      }
      #expect(chosen == 7)
    }
  }

  // On one queue, so that the test accepts after the select was woken and before its coroutine runs.
  @Test func `a selected case whose connection another coroutine has accepted waits for the next one`() async throws {
    try await co_launch(on: DispatchQueue(label: "accepting")) {
      // A connection to a local socket is there at once.
      let listener = try Listener.bind(try .unix("@co-net-overtaken-\(getpid())"))
      let job = co_launch {
        try co_select { listener.onAccept { try $0.read(upTo: 1) } }
      }
      try until { listener.socket.isAwaited(.reading) }
      let first = try Connection.connect(to: listener.address)
      while listener.socket.isAwaited(.reading) { sched_yield() }
      let overtaking = try #require(try listener.acceptNow())
      #expect(!job.isFinished)
      try until { listener.socket.isAwaited(.reading) }
      let second = try Connection.connect(to: listener.address)
      try second.write([2])
      #expect(try job.join() == [2])
      try first.write([1])
      #expect(try overtaking.read(upTo: 1) == [1])
    }
    .value
  }

  @Test func `a dump names the descriptor that a select waits for`() async throws {
    // On a queue of its own: a dump of everything would hold the jobs of other tests for a moment.
    try await co_launch(on: DispatchQueue(label: "selecting")) {
      let (one, other) = try Connection.pair()
      let job = co_launch(name: "selecting") { try choose(one, or: .seconds(60)) }
      try one.untilAwaited(.reading)
      // The connection is awaited a moment before the coroutine has parked. The suite's limit ends a wait for ever.
      var line = ""
      while !line.contains("waiting in a select") {
        try co_yield()
        let lines = Dump.text(of: [QueueHost.current.unsafelyUnwrapped]).split(separator: "\n")
        line = lines.first { $0.contains("\"selecting\"") }.map(String.init) ?? ""
      }
      #expect(line.contains("wait for descriptor \(one.socket.number)"), "\(line)")
      try other.write([1])
      #expect(try job.join() == "readable")
    }
    .value
  }
}
