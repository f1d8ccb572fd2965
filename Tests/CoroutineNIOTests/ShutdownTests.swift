#if NIO
import Coroutine
import CoroutineNIO
import Glibc
import Dispatch
import NIOCore
import NIOPosix
import Testing

@Suite("The shutdown of an event loop with coroutines", .timeLimit(.minutes(10)))
struct ShutdownTests {
  @Test func `live coroutines are cancelled, and the shutdown waits for their cleanup`() async throws {
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    let loop = group.next()
    let (begun, cleaned) = (Locked(0), Locked<[String]>([]))
    let jobs = (0..<10).map { index in
      co_launch(on: loop) {
        begun.withLock { $0 += 1 }
        defer { cleaned.withLock { $0.append("\(index)") } }
        do {
          try Gate().pass()
        } catch {
          // Cleanup may wait: for timers, for other threads, and for NIO's own calls on the loop.
          try co_shield {
            try co_delay(.milliseconds(2))
            try co_blocking {}
            let isOnLoop = try co_await(loop.submit { loop.inEventLoop })
            #expect(isOnLoop)
            #expect(loop.inEventLoop)
          }
          throw error
        }
      }
    }
    // A drain ends with its time slice: on a slow machine one does not reach all of them. What has not begun never
    // runs.
    while begun.current < 10 { try await loop.submit {}.get() }
    try await group.shutdownGracefully()
    #expect(cleaned.current.count == 10)
    for job in jobs {
      #expect(job.isFinished)
      await #expect(throws: EventLoopError.shutdown) { try await job.value }
    }
  }

  @Test func `a coroutine that starts at once is cancelled, although it is all that the loop has run`() async throws {
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    let loop = group.next()
    let job = try await loop.submit { co_launch(on: loop, start: .immediate) { try Gate().pass() } }.get()
    #expect(!job.isFinished)
    try await group.shutdownGracefully()
    #expect(job.isFinished)
    await #expect(throws: EventLoopError.shutdown) { try await job.value }
  }

  @Test func `a launch on a loop that is shut down fails, and the body never runs`() async throws {
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    let used = group.next()
    try await co_launch(on: used) {}.value
    try await group.shutdownGracefully()
    let hasRun = Locked(false)
    for _ in 0..<3 {
      let job = co_launch(on: used) { hasRun.withLock { $0 = true } }
      await #expect(throws: EventLoopError.shutdown) { try await job.value }
    }

    let second = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    let unused = second.next()
    try await second.shutdownGracefully()
    let job = co_launch(on: unused) { hasRun.withLock { $0 = true } }
    await #expect(throws: EventLoopError.shutdown) { try await job.value }
    #expect(!hasRun.current)
  }

  @Test func `launches on a loop that has ended its coroutines do not call it`() async {
    // In this mode NIO ends the process for a call of a loop that was shut down.
    await #expect(processExitsWith: .success) {
      setenv("SWIFTNIO_STRICT", "1", 1)
      let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
      let loop = group.next()
      try await co_launch(on: loop) {}.value
      try await group.shutdownGracefully()
      for _ in 0..<3 {
        do { try await co_launch(on: loop) {}.value } catch EventLoopError.shutdown { continue }
        exit(1)
      }
    }
  }

  @Test func `a server whose loops are shut down ends without calling them`() async {
    await #expect(processExitsWith: .success) {
      setenv("SWIFTNIO_STRICT", "1", 1)
      let clients = MultiThreadedEventLoopGroup(numberOfThreads: 1)
      for _ in 0..<20 {
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
        let isServed = Gate()
        let (server, client) = try await co_launch {
          let server = try Running(group, echo)
          let client = co_launch {
            try connect(clients, server.address) { connection in
              try connection.write(ByteBuffer(string: "served"))
              _ = try connection.read()
              isServed.open()
              _ = try connection.read()
            }
          }
          try isServed.pass()
          return (server, client)
        }.value
        try await group.shutdownGracefully()
        try await server.job.value
        _ = try? await client.value
      }
      try await clients.shutdownGracefully()
    }
  }

  @Test func `a future of a loop that was shut down stays pending, and may be dropped`() async {
    await #expect(processExitsWith: .success) {
      let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
      let loop = group.next()
      try await group.shutdownGracefully()
      let job = co_launch { 1 }
      _ = job.future(on: loop)
      let late = loop.makePromise(of: Int.self).completeWithCoroutine { 2 }
      await #expect(throws: EventLoopError.shutdown) { try await late.value }
      #expect(try await job.value == 1)
    }
  }

  @Test func `handlers and timers that outlive the loop still run`() async throws {
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    let loop = group.next()
    let late = Promise<Int>()
    let handled = Promise<Int>()
    // The handler is bound to the loop, by the coroutine that attaches it; the promise's deadline is the loop's timer.
    let never = Promise<Int>()
    let delayed = try await co_launch(on: loop) {
      _ = late.then { (value: Int) -> Void in handled.fulfill(value) }
      return never.timeout(.milliseconds(30))
    }.value
    try await group.shutdownGracefully()
    late.fulfill(1)
    let number = try await handled.value
    #expect(number == 1)
    await #expect(throws: TimeoutError.self) { try await delayed.value }
  }

  @Test func `a coroutine that has left for a queue is neither cancelled nor waited for`() async throws {
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    let loop = group.next()
    let queue = DispatchQueue(label: "elsewhere")
    let (isThere, mayEnd) = (Gate(), Gate())
    let job = co_launch(on: loop) {
      try co_switch(to: queue)
      isThere.open()
      try mayEnd.pass()
      return 1
    }
    try await isThere.value
    try await group.shutdownGracefully()
    #expect(!job.isFinished)
    mayEnd.open()
    let result = try await job.value
    #expect(result == 1)
  }

  @Test func `a shutdown ends reads, writes and accepts, and closes what they used`() async throws {
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
    let outcomes = Locked<[String]>([])
    let (server, client) = try await co_launch {
      let (isConnected, isReading) = (Gate(), Gate())
      let server = try Running(group) { connection in
        isConnected.open()
        let end = outcome { try readAll(connection).text }
        outcomes.withLock { $0.append(end) }
      }
      let address = server.address
      let client = co_launch {
        try connect(group, address) { connection in
          isReading.open()
          return try readAll(connection).text
        }
      }
      try isConnected.pass()
      try isReading.pass()
      return (server, client)
    }.value
    try await group.shutdownGracefully()
    // The server returns without an error, as after a cancellation.
    try await server.job.value
    let end = await Result { () async throws -> String in try await client.value }
    #expect(outcomes.current.count == 1)
    #expect("\(end)".contains("shutdown") || "\(end)".contains("success"), "\(end)")
  }

  /// What a round of the race does while the loop is shut down.
  enum Work: CaseIterable {
    case launches, futures, timers, children, channels
  }

  @Test(arguments: Work.allCases)
  func `each job ends, whenever the shutdown comes`(_ work: Work) async throws {
    let rounds = Int(2_000 * shutdownStress)
    var (values, failures) = (0, 0)
    // More rounds if the shutdowns have come too early, or too late, in all of them.
    var round = 0
    while round < rounds || values == 0 || failures == 0 {
      defer { round += 1 }
      let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
      let loop = group.next()
      // Every other round begins on a loop that has coroutines already.
      if round % 2 == 0 { try await co_launch(on: loop) {}.value }
      let down = Promise<Void>()
      let delay = round % 50
      DispatchQueue.global().async {
        for _ in 0..<(delay * 40) { _ = group.next() }
        group.shutdownGracefully { _ in down.fulfill(()) }
      }
      var jobs: [Job<Int>] = []
      for index in 0..<8 {
        jobs.append(launch(work, on: loop, index))
      }
      try await down.value
      for job in jobs {
        let result = await Result { () async throws -> Int in try await job.value }
        switch result {
        case .success: values += 1
        case .failure(let error as EventLoopError) where error == .shutdown: failures += 1
        // The future that it awaited was the closed loop's.
        case .failure(CoroutineError.abandoned) where work == .futures: failures += 1
        case .failure(let error): Issue.record("round \(round): \(error)")
        }
      }
    }
  }

  private func launch(_ work: Work, on loop: any EventLoop, _ index: Int) -> Job<Int> {
    co_launch(on: loop) {
      switch work {
      case .launches:
        return index
      case .futures:
        return try co_await(loop.submit { index })
      case .timers:
        try co_delay(.microseconds(index * 50))
        return index
      case .children:
        return try co_scope { scope in
          let child = scope.launch {
            try co_yield()
            try co_blocking {}
            return index
          }
          return try child.join()
        }
      case .channels:
        let channel = Coroutine.Channel<Int>(0)
        co_launch { try channel.send(index) }
        return try channel.receive() ?? -1
      }
    }
  }
}

extension ShutdownTests {
  /// Connects, and echoes, again and again, until the server is gone.
  private func clients(of address: SocketAddress, on loop: any EventLoop, _ echoes: Locked<Int>) -> [Job<Void>] {
    (0..<4).map { _ in
      co_launch(name: "client") {
        while true {
          try connect(loop, address) { connection in
            for _ in 0..<10 {
              try connection.write(ByteBuffer(string: "x"))
              if try connection.read() == nil { return }
              echoes.withLock { $0 += 1 }
            }
          }
        }
      }
    }
  }

  @Test func `a server and its connections end, whenever the shutdown comes`() async throws {
    let rounds = stressed(500)
    let echoes = Locked(0)
    // The clients are on a loop that lives: NIO ends the process if a closed loop has to connect.
    try await withLoops { living in
      // More rounds, and later shutdowns, if all of them have come before a client was answered.
      var round = 0
      while round < rounds || echoes.current == 0 {
        defer { round += 1 }
        let pause = round * 37 % 50 * 500 + max(0, round - rounds) * 5_000
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        let server = try await co_launch { try Running(group, echo) }.value
        let clients = clients(of: server.address, on: living.next(), echoes)
        let down = Promise<Void>()
        DispatchQueue.global().async {
          for _ in 0..<pause { _ = group.next() }
          group.shutdownGracefully { _ in down.fulfill(()) }
        }
        // A wait that the shutdown has forgotten would last until the time limit.
        try await down.value
        // As after a cancellation: its connections have ended before.
        try await server.job.value
        for client in clients { await #expect(throws: (any Error).self) { try await client.value } }
      }
    }
  }
}

extension Result where Failure == any Error {
  init(_ body: () async throws -> Success) async {
    do {
      self = .success(try await body())
    } catch {
      self = .failure(error)
    }
  }
}
#endif
