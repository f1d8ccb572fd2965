#if NIO
import Coroutine
import CoroutineNIO
import Dispatch
import NIOCore
import NIOPosix
import Testing

@Suite("Coroutines on an event loop", .timeLimit(.minutes(10)))
struct LoopTests {
  @Test func `a coroutine runs on the loop's thread, whatever wakes it`() async throws {
    try await withLoops(2) { group in
      let (loop, other) = (group.next(), group.next())
      #expect(loop !== other)
      let channel = Coroutine.Channel<Int>(1)
      let job = co_launch(on: loop, name: "on the loop") {
        var seen: [Bool] = [loop.inEventLoop]
        seen.append(try channel.receive() == 1 && loop.inEventLoop)
        try co_delay(.milliseconds(1))
        seen.append(loop.inEventLoop)
        try co_yield()
        seen.append(loop.inEventLoop)
        let value = try co_await { () async in
          await Task.yield()
          return 2
        }
        seen.append(value == 2 && loop.inEventLoop)
        seen.append(try co_blocking { !loop.inEventLoop } && loop.inEventLoop)
        return seen
      }
      co_launch(on: other) { try channel.send(1) }
      let seen = try await job.value
      #expect(seen == Array(repeating: true, count: 6))
      #expect(job.name == "on the loop")
    }
  }

  @Test func `coroutines of a loop run one at a time, in the order of their launches`() async throws {
    try await withLoops { group in
      let loop = group.next()
      let order = Locked<[Int]>([])
      let jobs = (0..<200).map { index in
        co_launch(on: loop) { order.withLock { $0.append(index) } }
      }
      for job in jobs { try await job.value }
      #expect(order.current == Array(0..<200))
    }
  }

  @Test func `a child of a coroutine runs on the same loop`() async throws {
    let areOnLoop = try await onLoop { loop in
      try co_scope { scope in
        let children = (0..<10).map { _ in
          scope.launch {
            try co_delay(.microseconds(100))
            return loop.inEventLoop
          }
        }
        return try children.map { try $0.join() }
      }
    }
    #expect(areOnLoop == Array(repeating: true, count: 10))
  }

  @Test func `a Task that prefers the loop's executor runs there, and starts coroutines at once`() async throws {
    let places = try await withLoops { group in
      let loop = group.next()
      return try await Task(executorPreference: loop.coroutineExecutor) {
        let places = Locked([loop.inEventLoop])
        let job = co_launch(on: loop, start: .immediate) {
          places.withLock { $0.append(loop.inEventLoop) }
          try co_delay(.milliseconds(1))
          try co_await { places.withLock { $0.append(loop.inEventLoop) } }
        }
        let count = places.current.count
        try await job.value
        return places.current + [count == 2, loop.inEventLoop]
      }.value
    }
    #expect(places == [true, true, true, true, true])
  }

  @Test func `an immediate start on another thread is a queued one`() async throws {
    let isOnLoop = try await onWorker { group in
      let loop = group.next()
      return try co_launch(on: loop, start: .immediate) { loop.inEventLoop }.join()
    }
    #expect(isOnLoop)
  }

  @Test func `a coroutine of the workers moves to a loop and from there to another one`() async throws {
    let seen = try await onWorker(loops: 2) { group in
      let (first, second) = (group.next(), group.next())
      var seen: [Bool] = []
      for loop in [first, second, second] {
        try co_switch(to: loop)
        seen.append(loop.inEventLoop)
      }
      try co_switch(to: WorkerPoolExecutor.shared)
      return seen + [!first.inEventLoop && !second.inEventLoop]
    }
    #expect(seen == [true, true, true, true])
  }

  @Test func `a coroutine that moves to a loop that was shut down is cancelled with the loop's error`() async throws {
    let loop = try await withLoops { $0.next() }
    let isCancelled = try await co_launch {
      do {
        try co_switch(to: loop)
        return false
      } catch EventLoopError.shutdown {
        return co_isCancelled
      }
    }.value
    #expect(isCancelled)
  }

  /// Counts the ticks of a loop.
  private final class Ticks: NIOEventLoopMetricsDelegate {
    let count = Locked(0)
    func processedTick(info: NIOEventLoopTickInfo) { count.withLock { $0 += 1 } }
  }

  @Test func `a coroutine that is woken on its own loop continues in the same tick`() async throws {
    let ticks = Ticks()
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 1, metricsDelegate: ticks)
    let loop = group.next()
    let rounds = try await co_launch(on: loop) {
      var inSameTick = 0
      for _ in 0..<100 {
        let promise = loop.makePromise(of: Int.self)
        loop.scheduleTask(in: .microseconds(10)) { promise.succeed(ticks.count.current) }
        if try co_await(promise.futureResult) == ticks.count.current { inSameTick += 1 }
      }
      return inSameTick
    }.value
    #expect(rounds == 100)
    try await group.shutdownGracefully()
  }

  @Test func `coroutines that are always ready do not keep the loop from its timers and descriptors`() async throws {
    try await onWorker { group in
      let loop = group.next()
      let server = try Running(group, echo)
      let isOver = Locked(false)
      let busy = co_launch(on: loop) {
        while !isOver.current { try co_yield() }
      }
      // On the same loop, since there is only one.
      let echoed = try connect(group, server.address) { connection in
        var texts: [String] = []
        for index in 0..<20 {
          try connection.write(ByteBuffer(string: "\(index)"))
          texts.append(try connection.read()?.text ?? "end")
        }
        return texts
      }
      #expect(echoed == (0..<20).map { "\($0)" })
      let timed = try co_await(loop.scheduleTask(in: .milliseconds(1)) { true })
      #expect(timed)
      isOver.withLock { $0 = true }
      try busy.join()
      try server.stop()
    }
  }

  @Test func `timers of many coroutines fire in time, and none is lost when others are cancelled`() async throws {
    try await onLoop { loop in
      let clock = ContinuousClock()
      let count = Locked(0)
      try co_scope { scope in
        for index in (1...20).reversed() {
          scope.launch {
            let start = clock.now
            try co_delay(.milliseconds(index))
            #expect(clock.now - start >= .milliseconds(index))
            count.withLock { $0 += 1 }
          }
          // Sets an earlier timer, and calls it off, unless the machine is slow.
          _ = outcome { try co_timeout(.microseconds(900)) { try co_yield() } }
          let end = outcome { try co_timeout(.microseconds(200)) { try co_delay(.seconds(60)) } }
          #expect(end.contains("deadline"), "\(end)")
        }
      }
      #expect(count.current == 20)
    }
  }

  @Test func `launches from many threads each run once`() async throws {
    try await withLoops(2) { group in
      let count = Locked(0)
      let rounds = stressed(500)
      try await withThrowingTaskGroup(of: Void.self) { tasks in
        for _ in 0..<4 {
          tasks.addTask {
            for _ in 0..<rounds {
              try await co_launch(on: group.next()) { count.withLock { $0 += 1 } }.value
            }
          }
        }
        try await tasks.waitForAll()
      }
      #expect(count.current == 4 * rounds)
    }
  }

  @Test func `Job.blockingWait on the loop's own thread is refused instead of blocking it`() async throws {
    try await withLoops { group in
      let loop = group.next()
      let gate = Gate()
      let job = co_launch(on: loop) { try gate.pass() }
      let refused = try await loop.submit { outcome { try job.blockingWait() } }.get()
      #expect(refused.contains("could never end"), "\(refused)")
      gate.open()
      try await job.value
    }
  }
}
#endif
