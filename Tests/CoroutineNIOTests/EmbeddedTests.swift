#if NIO
import Coroutine
import CoroutineNIO
import Dispatch
import NIOCore
import NIOEmbedded
import Testing

@Suite("Loops that are told how late it is", .timeLimit(.minutes(10)))
struct EmbeddedTests {
  @Test func `an observer of a coroutine may shut the loop down within a timer's drain`() async throws {
    try await onOwnThread {
      let loop = EmbeddedEventLoop()
      let job = co_launch(on: loop) { try co_delay(.seconds(1)) }
      _ = job.observe { _ in try? loop.syncShutdownGracefully() }
      loop.run()
      loop.advanceTime(by: .seconds(2))
      #expect(outcome { try job.blockingWait() } == "()")
    }
  }

  @Test func `delays, timeouts and selects follow the time of an EmbeddedEventLoop`() async throws {
    try await onOwnThread {
      let loop = EmbeddedEventLoop()
      let never = Channel<Int>()
      let delay = co_launch(on: loop) { try co_delay(.seconds(5)) }
      let timeout = co_launch(on: loop) { try co_timeout(.seconds(7)) { try never.receive() } }
      let select = co_launch(on: loop) {
        try co_select {
          never.onReceive { _ in "a value" }
          SelectCase.onTimeout(.seconds(9)) { "late" }
        }
      }
      loop.run()
      loop.advanceTime(by: .seconds(4))
      #expect([delay.isFinished, timeout.isFinished, select.isFinished] == [false, false, false])
      loop.advanceTime(by: .seconds(2))
      #expect([delay.isFinished, timeout.isFinished, select.isFinished] == [true, false, false])
      loop.advanceTime(by: .seconds(2))
      #expect([delay.isFinished, timeout.isFinished, select.isFinished] == [true, true, false])
      loop.advanceTime(by: .hours(1))
      #expect(throws: TimeoutError.self) { try timeout.blockingWait() }
      #expect(try select.blockingWait() == "late")
      // Each delay begins at the time at which the one before has ended, also within one step.
      let ticks = Locked(0)
      let ticker = co_launch(on: loop) {
        while true {
          try co_delay(.seconds(60))
          ticks.withLock { $0 += 1 }
        }
      }
      loop.run()
      loop.advanceTime(by: .minutes(10))
      #expect(ticks.current == 10)
      ticker.cancel()
      try loop.syncShutdownGracefully()
    }
  }

  @Test func `real time alone ends no delay of such a loop`() async throws {
    try await onOwnThread {
      let loop = EmbeddedEventLoop()
      let delay = co_launch(on: loop) { try co_delay(.nanoseconds(1)) }
      loop.run()
      let start = DispatchTime.now()
      while DispatchTime.now() < start + .milliseconds(1) {}
      loop.run()
      #expect(!delay.isFinished)
      loop.advanceTime(by: .nanoseconds(1))
      #expect(delay.isFinished)
      try loop.syncShutdownGracefully()
    }
  }

  @Test func `delays follow the time of a NIOAsyncTestingEventLoop`() async throws {
    let loop = NIOAsyncTestingEventLoop()
    let delay = co_launch(on: loop) { try co_delay(.seconds(5)) }
    await loop.run()
    await loop.advanceTime(by: .seconds(4))
    #expect(!delay.isFinished)
    await loop.advanceTime(by: .seconds(2))
    #expect(delay.isFinished)
    try await delay.value
    await loop.shutdownGracefully()
  }
}
#endif
