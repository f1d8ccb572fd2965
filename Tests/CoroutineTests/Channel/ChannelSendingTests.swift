import Coroutine
import Testing

/// A value that is not Sendable.
private final class Parcel {
  var stamps = 0
  func stamped() -> Int {
    stamps += 1
    return stamps
  }
}

@Suite("Channel: values that are not Sendable", .timeLimit(.minutes(10)))
struct ChannelSendingTests {
  @Test func `a value goes through two channels to another scheduler, and is the same object`() async throws {
    let stamps = try await onSerialQueue {
      let (first, second) = (Channel<Parcel>(2), Channel<Parcel>())
      co_launch {
        for _ in 0..<3 {
          let parcel = Parcel()
          parcel.stamps += 1
          try first.send(parcel)
        }
        first.close()
      }
      co_launch(on: WorkerPoolExecutor.shared) {
        while let parcel = try first.receive() {
          parcel.stamps += 1
          try second.send(parcel)
        }
        second.close()
      }
      var stamps: [Int] = []
      while let parcel = try second.receive() { stamps.append(parcel.stamped()) }
      return stamps
    }
    #expect(stamps == [3, 3, 3])
  }

  @Test func `a select receives a value, and its body sends it on`() async throws {
    let stamps = try await onSerialQueue {
      let (first, second) = (Channel<Parcel>(1), Channel<Parcel>(1))
      co_launch { try first.send(Parcel()) }
      try co_select {
        first.onReceive { parcel in
          guard let parcel else { return }
          _ = parcel.stamped()
          try second.send(parcel)
        }
      }
      return try second.receive().map { $0.stamped() }
    }
    #expect(stamps == 2)
  }

  @Test func `async code receives a value`() async throws {
    let channel = Channel<Parcel>(2)
    #expect(channel.trySend(Parcel()) == .sent)
    channel.close()
    var stamps = 0
    for try await parcel in channel { stamps += parcel.stamped() }
    #expect(stamps == 1)
  }

  @Test func `a batch that a cancelled receiver cannot keep goes back, and the hook gets what nobody receives`()
    async throws
  {
    let dropped = Trace()
    let count = try await onSerialQueue {
      let channel = Channel<Parcel>(4) { dropped("\($0.stamped())") }
      for _ in 0..<2 { try channel.send(Parcel()) }
      let job = co_launch { try channel.receive(count: 3).count }
      try co_yield()
      job.cancel()
      try co_yield()
      let count = channel.count
      channel.cancel()
      return count
    }
    #expect(count == 2)
    #expect(dropped.all == ["1", "1"])
  }

  @Test func `send and trySend of Sendable values may be passed as functions`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(4)
      try [1, 2].forEach(channel.send)
      #expect([3, 4, 5].map(channel.trySend) == [.sent, .sent, .full])
      let hook: (@Sendable (Int) -> Void)? = nil
      _ = Channel<Int>(4, onUndelivered: hook)
      #expect(try channel.receiveAll() == [1, 2, 3, 4])
    }
  }

  @Test func `onReceive, onAwait and forEach take named functions without sending`() async throws {
    let seen = Trace()
    func take(_ parcel: Parcel) { seen("\(parcel.stamped())") }
    func takeFirst(_ parcel: Parcel?) { seen("first \(parcel?.stamped() ?? 0)") }
    func takeOutcome(_ result: Result<Int, any Error>) { seen(outcome(result)) }
    try await onSerialQueue {
      let channel = Channel<Parcel>(2)
      for _ in 0..<2 { try channel.send(Parcel()) }
      channel.close()
      try co_select { channel.onReceive(takeFirst) }
      try channel.forEach(take)
      try co_select { Promise.value(5).onAwait(takeOutcome) }
    }
    #expect(seen.all == ["first 1", "1", "5"])
  }
}
