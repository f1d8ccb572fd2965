import CoroutineNet
import CoroutineTesting
import Testing

@testable import Coroutine

// Tests/CoroutineKernelTests/Timer/ExtremeDurationTests.swift has the calls of the product Coroutine.

@Suite("Extreme durations and rates of worlds", .timeLimit(.minutes(10)))
struct ExtremeTests {
  static let endless: [Duration] = [
    .nanoseconds(Int64.max), .nanoseconds(Int64.max - 1), .seconds(Int64.max), .seconds(1e19),
    Duration(attoseconds: .max),
  ]

  private func receive(from socket: DatagramSocket) throws {
    try withUnsafeTemporaryAllocation(byteCount: 8, alignment: 1) { _ = try socket.receive(into: $0) }
  }

  @Test(arguments: endless, 0..<5 as Range<UInt64>)
  func `what never arrives ends neither the world's time nor its run`(_ latency: Duration, _ seed: UInt64) throws {
    let world = World(seed: seed)
    try world.run {
      let listener = try Listener.bind(.any(port: 7))
      let datagrams = try DatagramSocket.bind(.any(port: 9))
      let hasConnected = Promise<Void>()
      world.network.host("client") {
        let connection = try Connection.connect(host: "body", port: 7)
        let socket = try DatagramSocket.bind(.any(port: 9))
        world.network.setLatency(latency...latency, from: "client", to: "body")
        hasConnected.fulfill()
        try connection.write([1])
        try socket.send([1], to: SocketAddress.resolve("body", port: 9)[0])
        #expect(throws: TimeoutError.self) {
          try co_timeout(.seconds(7)) { try Connection.connect(host: "body", port: 7) }
        }
      }
      let server = try listener.accept()
      try co_await(hasConnected)
      #expect(throws: TimeoutError.self) { try co_timeout(.seconds(10)) { try server.read(upTo: 1) } }
      #expect(throws: TimeoutError.self) { try co_timeout(.seconds(10)) { try receive(from: datagrams) } }
      #expect(world.now == .seconds(20))
    }
  }

  @Test(arguments: endless + [.zero, .nanoseconds(1), Duration(attoseconds: 1)])
  func `a latency is drawn from any range`(_ longest: Duration) throws {
    for seed in 0..<10 as Range<UInt64> {
      let world = World(seed: seed)
      try world.run {
        let socket = try DatagramSocket.bind(.any(port: 9))
        world.network.setLatency(.zero...longest, from: "body", to: "body")
        for _ in 0..<5 { try socket.send([1], to: .loopback(port: 9)) }
        world.network.partition(from: "body", to: "body")
        world.network.heal(from: "body", to: "body")
        try co_delay(.nanoseconds(1))
        if longest < .nanoseconds(2) { for _ in 0..<5 { try receive(from: socket) } }
      }
    }
  }

  @Test(arguments: endless) func `a time limit of any length holds`(_ limit: Duration) {
    let strategy = Exploration.Strategy.random(seeds: 2)
    #expect(explore(strategy, timeLimit: limit) { try co_delay(.seconds(9_000_000_000)) }.failure == nil)
  }

  @Test(arguments: [.zero, .nanoseconds(-1), .nanoseconds(Int64.min), .seconds(-1e19), Duration(attoseconds: .min)])
  func `a time limit of zero or less lets no time pass`(_ limit: Duration) {
    #expect(explore(.inOrder, timeLimit: limit) { try co_yield() }.failure == nil)
    let failure = explore(.inOrder, timeLimit: limit) { try co_delay(.nanoseconds(1)) }.failure
    #expect(failure?.error is World.TimeLimitError)
  }

  @Test(arguments: endless, [0.001, 1, 1000]) func `an endless duration is endless by every clock`(
    _ duration: Duration,
    _ rate: Double
  ) throws {
    let world = World()
    try world.run {
      world.network.setClockRate(rate, of: "host")
      let hasEnded = Promise<Void>()
      world.network.host("host") {
        try co_delay(duration)
        hasEnded.fulfill()
      }
      let isInTime = (try? co_timeout(.seconds(9_000_000_000)) { try co_await(hasEnded) }) != nil
      // Only this one is a duration that was not clamped: 292 years, which the fastest clock measures in 107 days.
      #expect(isInTime == (duration == .nanoseconds(Int64.max - 1) && rate > 1))
    }
  }

  private func text(_ end: ExitTest.Result?) -> String {
    String(decoding: end?.standardErrorContent ?? [], as: UTF8.self)
  }

  @Test func `a part or a rate that is no number traps with its sentence`() async {
    let loss = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      World().network.setLoss(.nan, from: "a", to: "b")
    }
    #expect(text(loss).contains("is lost is from 0 to 1"))
    let rate = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      World().network.setClockRate(.nan, of: "a")
    }
    #expect(text(rate).contains("a rate from 0.001 to 1000"))
    let latency = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      World().network.setLatency(Duration(attoseconds: .min) ... .zero, from: "a", to: "b")
    }
    #expect(text(latency).contains("before it was sent"))
  }
}
