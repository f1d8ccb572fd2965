#if Demo
import Coroutine
import CoroutineNet
import CoroutineTesting
import Testing

@testable import CoroutineDemo

@Suite(.simulated(.random(seeds: 20)), .timeLimit(.minutes(10))) struct `Trying again` {
  private struct Temporary: Error, Equatable { var number: Int }
  private struct Permanent: Error {}

  private let retry = Retry(attempts: 4, pauses: .constant(.seconds(2)))

  @Test func `returns the first success, after a pause for each failure before`() throws {
    var failed = 0
    var reported: [Int] = []
    let value = try retry {
      $0 is Temporary
    } report: { number, _ in
      reported.append(number)
    } _: {
      if failed < 2 {
        failed += 1
        throw Temporary(number: failed)
      }
      return 7
    }
    #expect((value, failed, reported) == (7, 2, [1, 2]))
    #expect(World.current!.now == .seconds(4))
  }

  @Test func `throws the last failure when the attempts are used up`() throws {
    var calls = 0
    #expect(throws: Temporary(number: 4)) {
      try retry {
        $0 is Temporary
      } _: {
        calls += 1
        throw Temporary(number: calls)
      }
    }
    #expect(World.current!.now == .seconds(6))
  }

  @Test func `throws at once what will not pass`() throws {
    var calls = 0
    #expect(throws: Permanent.self) {
      try retry {
        $0 is Temporary
      } _: {
        calls += 1
        throw Permanent()
      }
    }
    #expect(calls == 1 && World.current!.now == .zero)
  }

  @Test func `ends with a deadline around it, in a pause and in an attempt`() throws {
    #expect(throws: TimeoutError.self) {
      try co_timeout(.seconds(3)) {
        try retry { _ in
          true
        } _: {
          throw Temporary(number: 1)
        }
      }
    }
    #expect(World.current!.now == .seconds(3))
    var calls = 0
    #expect(throws: TimeoutError.self) {
      try co_timeout(.seconds(3)) {
        try retry { _ in
          true
        } _: {
          calls += 1
          try co_delay(.seconds(60))
        }
      }
    }
    #expect(calls == 1 && World.current!.now == .seconds(6))
  }

  @Test func `an attempt's own deadline is a failure like others`() throws {
    var calls = 0
    #expect(throws: TimeoutError.self) {
      try retry {
        $0 is TimeoutError
      } _: {
        calls += 1
        try co_timeout(.seconds(1)) { try co_delay(.seconds(60)) }
      }
    }
    #expect(calls == 4 && World.current!.now == .seconds(10))
  }

  @Test func `ends when it is cancelled, even if the attempt makes something else of it`() throws {
    let job = co_launch {
      let retry = Retry(attempts: 4, pauses: .constant(.seconds(2)))
      try retry { _ in
        true
      } _: {
        do { try co_delay(.seconds(60)) } catch { throw Temporary(number: 0) }
      }
    }
    try World.current!.advance(by: .seconds(1))
    job.cancel()
    #expect(throws: CancellationError.self) { try job.join() }
    #expect(World.current!.now == .seconds(1))
  }

  @Test(.simulated(.random(seeds: 20)))
  func `over a partition, connecting succeeds as soon as it can`() throws {
    let network = World.current!.network
    network.host("server") {
      let listener = try Listener.bind(.any(port: 1))
      while true { try listener.accept().close() }
    }
    try World.current!.settle()
    network.partition(from: "body", to: "server")
    co_launch {
      try co_delay(.seconds(7))
      network.heal(from: "body", to: "server")
    }
    let retry = Retry(attempts: 20, pauses: .exponential(from: .milliseconds(100), limit: .seconds(1)))
    let connection = try retry {
      $0 is TimeoutError
    } _: {
      try co_timeout(.milliseconds(500)) { try Connection.connect(host: "server", port: 1) }
    }
    connection.close()
    // The attempt that was under way, and one pause.
    #expect(World.current!.now >= .seconds(7) && World.current!.now <= .milliseconds(8_500))
  }
}
#endif
