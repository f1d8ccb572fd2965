import Coroutine
import Testing

@Suite("co_select: which case", .timeLimit(.minutes(10)))
struct SelectChoiceTests {
  @Test(arguments: [2, 3, 5, 8, 12])
  func `ready cases are picked uniformly`(cases: Int) async throws {
    let expected = isSanitized ? 400 : 2_000
    let rounds = expected * cases
    let counts = try await onSerialQueue {
      let channels = (0..<cases).map { _ in Channel<Int>(1) }
      var counts = Array(repeating: 0, count: cases)
      for _ in 0..<rounds {
        for (index, channel) in channels.enumerated() { _ = channel.trySend(index) }
        let index = try co_select { for channel in channels { channel.onReceive { $0 ?? -1 } } }
        counts[index] += 1
      }
      return counts
    }
    // Ten standard deviations are allowed.
    let allowed = Int(10 * Double(expected).squareRoot())
    for count in counts { #expect(abs(count - expected) < allowed, "\(counts)") }
  }

  @Test func `the choice is uniform among the ready cases, whatever cases are between them`() async throws {
    let counts = try await onSerialQueue {
      let never = Channel<Int>()
      let ready = [Channel<Int>(1), Channel<Int>(1)]
      var counts = [0, 0]
      for _ in 0..<4_000 {
        for (index, channel) in ready.enumerated() { _ = channel.trySend(index) }
        let index = try co_select {
          ready[0].onReceive { $0 ?? -1 }
          never.onReceive { _ in -1 }
          never.onReceive { _ in -1 }
          ready[1].onReceive { $0 ?? -1 }
        }
        counts[index] += 1
      }
      return counts
    }
    for count in counts { #expect((1_680...2_320).contains(count), "\(counts)") }
  }

  @Test func `a biased select takes the first ready case`() async throws {
    try await onSerialQueue {
      let first = Channel<Int>(1)
      let second = Channel<Int>(1)
      for _ in 0..<100 {
        _ = first.trySend(1)
        _ = second.trySend(2)
        let value = try co_select(biased: true) {
          first.onReceive { $0 }
          second.onReceive { $0 }
        }
        #expect(value == 1)
      }
    }
  }

  @Test(.inWorlds) func `onTimeout and otherwise need no type annotation, in any position`() throws {
    let (channel, promise) = (Channel<Int>(.unbounded), Promise<Int>())
    func below() throws -> String {
      try co_select {
        channel.onReceive { "received \($0 ?? 0)" }
        promise.onAwait { _ in
          let word = "awaited"
          return word
        }
        .onTimeout(.milliseconds(1)) { "timeout" }
      }
    }
    func above(_ isPatient: Bool) throws -> String {
      try co_select(biased: true) {
        .onTimeout(.seconds(3_600)) { "late" }
        if isPatient { channel.onReceive { "received \($0 ?? 0)" } }
        if !isPatient {
          .otherwise {
            let word = "now"
            return word
          }
        }
      }
    }
    func belowALoop() throws -> String {
      try co_select {
        for channel in [channel, Channel<Int>()] { channel.onReceive { "received \($0 ?? 0)" } }
        .otherwise { "nothing" }
      }
    }
    func both() throws -> String {
      try co_select {
        channel.onReceive { "received \($0 ?? 0)" }
          .onTimeout(.seconds(3_600)) { "late" }
          .otherwise { "nothing" }
      }
    }
    #expect(try below() == "timeout")
    #expect(try above(false) == "now")
    #expect(try belowALoop() == "nothing")
    #expect(try both() == "nothing")
    for value in 1...4 { try channel.send(value) }
    #expect(try [below(), above(true), belowALoop(), both()] == (1...4).map { "received \($0)" })
  }

  @Test func `otherwise is taken only when nothing is ready`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(1)
      let select = {
        try co_select {
          SelectCase.otherwise { "otherwise" }
          channel.onReceive { "received \($0 ?? -1)" }
          SelectCase.otherwise { "the second otherwise" }
        }
      }
      for _ in 0..<50 {
        #expect(try select() == "otherwise")
        try channel.send(1)
        #expect(try select() == "received 1")
      }
    }
  }

  @Test(.inWorlds) func `a timeout of zero or less is ready at once`() throws {
    let channel = Channel<Int>()
    for timeout in [Duration.zero, .seconds(-1)] {
      let value = try co_select {
        channel.onReceive { $0 ?? 0 }
        SelectCase.onTimeout(timeout) { -1 }
      }
      #expect(value == -1)
    }
    #expect(worldTime == .zero)
  }

  @Test(.inWorlds) func `the earliest timeout counts, and is never early`() throws {
    let channel = Channel<Int>()
    let which = try co_select {
      SelectCase.onTimeout(.seconds(3_600)) { "late" }
      channel.onReceive { _ in "received" }
      SelectCase.onTimeout(.milliseconds(5)) { "early" }
    }
    #expect(which == "early")
    #expect(worldTime == .milliseconds(5))
    #expect(channel.trySend(1) == .full)
  }

  @Test(.inWorlds) func `a case that is ready in time cancels the timeout`() throws {
    let channel = Channel<Int>()
    let job = co_launch {
      try co_select {
        channel.onReceive { $0 ?? 0 }
        SelectCase.onTimeout(.seconds(3_600)) { -1 }
        SelectCase.onTimeout(.seconds(7_200)) { -2 }
      }
    }
    try co_yield()
    try channel.send(1)
    #expect(try job.join() == 1)
    #expect(worldTime == .zero)
  }

  @Test func `dropping channels are always ready to send`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let oldest = Channel<Int>(.dropOldest(1)) { dropped("oldest \($0)") }
      let newest = Channel<Int>(.dropNewest(1)) { dropped("newest \($0)") }
      for value in 1...2 {
        try co_select { oldest.onSend(value) {} }
        try co_select { newest.onSend(value) {} }
      }
      #expect(try oldest.receive() == 2)
      #expect(try newest.receive() == 1)
    }
    #expect(dropped.all == ["oldest 1", "newest 2"])
  }
}
