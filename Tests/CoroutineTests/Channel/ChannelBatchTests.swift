import Testing

@testable import Coroutine

@Suite("Channel: several values at once", .timeLimit(.minutes(10)))
struct ChannelBatchTests {
  @Test func `receiveAll waits for the first value and takes all available values`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(2)
      let job = co_launch { try channel.receiveAll() }
      try co_yield()
      #expect(!job.isFinished)
      for value in 0..<2 { try channel.send(value) }
      #expect(try job.join() == [0, 1])
    }
  }

  @Test func `receiveAll takes the values of waiting senders, and wakes them`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(1)
      let jobs = (0..<5).map { value in co_launch { try channel.send(value) } }
      try co_yield()
      #expect(try channel.receiveAll() == [0, 1, 2, 3, 4])
      for job in jobs { try job.join() }
    }
  }

  @Test(arguments: [0, 1, 1_000])
  func `receiveAll takes the values of very many waiting senders at once`(capacity: Int) async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(.bounded(capacity))
      let begun = Locked(0)
      let jobs = (0..<4_000).map { value in
        co_launch {
          begun.withLock { $0 += 1 }
          try channel.send(value)
        }
      }
      // A sender that finds room may let others run before it sends, so that the driver can poll.
      repeat { try co_yield() } while begun.current < 4_000
      try co_yield()
      #expect(try channel.receiveAll().sorted() == Array(0..<4_000))
      for job in jobs { try job.join() }
    }
  }

  @Test func `no memory is allocated to take nothing, and little again and again to take one value more`() {
    let channel = Channel<Int>(.unbounded)
    var values: [Int] = []
    channel.takeAll(&values, .max)
    #expect(values.capacity == 0)
    var allocations = 0
    for value in 0..<4_000 {
      let before = values.capacity
      #expect(channel.trySend(value) == .sent)
      channel.takeAll(&values, 1)
      if values.capacity != before { allocations += 1 }
    }
    #expect(values == Array(0..<4_000))
    #expect(allocations <= 13)
  }

  @Test(arguments: [Channel<Int>.Capacity.unbounded, .bounded(20_000), .dropOldest(20_000)])
  func `receiveAll takes the memory of very many values as well`(capacity: Channel<Int>.Capacity) async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(capacity)
      // The values wrap around the end of the ring.
      for value in -5_000..<0 { try channel.send(value) }
      for value in -5_000..<0 { #expect(try channel.receive() == value) }
      for value in 0..<20_000 { try channel.send(value) }
      #expect(try channel.receiveAll() == Array(0..<20_000))
      #expect(channel.count == 0)
      #expect(channel.state.ring.capacity < 20_000)
      for value in 0..<10 { try channel.send(value) }
      #expect(try channel.receive(count: 10) == Array(0..<10))
    }
  }

  @Test func `receive(count:) takes its count of very many values`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(.unbounded)
      for value in 0..<10_000 { try channel.send(value) }
      #expect(try channel.receive(count: 9_999) == Array(0..<9_999))
      #expect(try channel.receive(count: 1) == [9_999])
    }
  }

  @Test func `receiveAll takes very many values and those of waiting senders`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(2_000)
      for value in 0..<2_000 { try channel.send(value) }
      let sender = co_launch { try channel.send(2_000) }
      try co_yield()
      #expect(try channel.receiveAll() == Array(0...2_000))
      try sender.join()
    }
  }

  @Test func `receive(count:) waits until it has that many`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>()
      let job = co_launch { try channel.receive(count: 3) }
      for value in 0..<3 {
        try co_yield()
        #expect(!job.isFinished)
        try channel.send(value)
      }
      #expect(try job.join() == [0, 1, 2])
      #expect(try channel.receive(count: 0) == [])
    }
  }

  @Test func `receive(count:) returns fewer only at the end`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>()
      let job = co_launch { try channel.receive(count: 3) }
      try co_yield()
      try channel.send(1)
      channel.close()
      #expect(try job.join() == [1])
      #expect(try channel.receive(count: 3) == [])
    }
  }

  @Test(arguments: [0, 2])
  func `a cancelled receive(count:) puts its values back, in order`(capacity: Int) async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(.bounded(capacity))
      let job = co_launch { try channel.receive(count: 5) }
      for value in 0..<3 {
        try co_yield()
        try channel.send(value)
      }
      try co_yield()
      job.cancel(Oops("enough"))
      #expect(outcome { try job.join() } == "Oops(enough)")
      #expect(channel.count == 3)
      let sender = co_launch { try channel.send(3) }
      try co_yield()
      #expect(try channel.receiveAll() == [0, 1, 2, 3])
      try sender.join()
    }
  }

  // MARK: Up to n within a time

  @Test(.inWorlds) func `receive(upTo:within:) returns with its count, with the time, and with the end`() throws {
    let channel = Channel<Int>(2)
    let sender = co_launch {
      for value in 0..<9 {
        try channel.send(value)
        try co_delay(.milliseconds(value < 5 ? 10 : 100))
      }
      channel.close()
    }
    #expect(try channel.receive(upTo: 3, within: .seconds(1)) == [0, 1, 2])
    #expect(worldTime == .milliseconds(20))
    // The sixth comes at 50 ms, the next ones 100 ms after one another.
    #expect(try channel.receive(upTo: 9, within: .milliseconds(130)) == [3, 4, 5])
    #expect(worldTime == .milliseconds(150))
    try co_delay(.seconds(1))
    #expect(try channel.receive(upTo: 9, within: .zero) == [6, 7, 8])
    try sender.join()
    #expect(try channel.receive(upTo: 9, within: .zero) == nil)
    #expect(try channel.receive(upTo: 9, within: .seconds(1)) == nil)
  }

  @Test(.inWorlds) func `receive(upTo:within:) returns nothing if nothing comes, and takes what is there`() throws {
    let channel = Channel<Int>(.unbounded)
    #expect(try channel.receive(upTo: 3, within: .milliseconds(5)) == [])
    #expect(worldTime == .milliseconds(5))
    #expect(try channel.receive(upTo: 3, within: .zero) == [])
    #expect(try channel.receive(upTo: 0, within: .seconds(9)) == [])
    for value in 0..<4 { _ = channel.trySend(value) }
    #expect(try channel.receive(upTo: 3, within: .seconds(-1)) == [0, 1, 2])
    #expect(worldTime == .milliseconds(5))
    // The values first, then the cause.
    channel.close(Oops("cause"))
    #expect(try channel.receiveOnly.receive(upTo: 3, within: .seconds(1)) == [3])
    #expect(outcome { _ = try channel.receive(upTo: 3, within: .seconds(1)) } == "Oops(cause)")
  }

  /// A batch that was put back each time would hold more and more beyond the capacity.
  @Test(.inWorlds) func `receive(upTo:within:) keeps the back-pressure, and loses nothing`() throws {
    let channel = Channel<Int>(4)
    let sent = Locked(0)
    let sender = co_launch {
      for value in 0..<200 {
        try channel.send(value)
        sent.withLock { $0 += 1 }
        if value.isMultiple(of: 3) { try co_delay(.milliseconds(4)) }
      }
      channel.close()
    }
    var received: [Int] = []
    while let batch = try channel.receive(upTo: 10, within: .milliseconds(7)) {
      received += batch
      #expect(batch.count <= 10)
      try co_delay(.milliseconds(20))
      #expect(channel.count <= 4 && sent.current <= received.count + 5)
    }
    try sender.join()
    #expect(received == Array(0..<200))
  }

  @Test(.inWorlds, arguments: ["job", "deadline"])
  func `a cancelled receive(upTo:within:) puts its values back, in order`(_ source: String) throws {
    let channel = Channel<Int>(8)
    let receiver = co_launch {
      if source == "job" {
        try channel.receive(upTo: 5, within: .seconds(9)) ?? []
      } else {
        try co_timeout(.milliseconds(50)) { try channel.receive(upTo: 5, within: .seconds(9)) ?? [] }
      }
    }
    for value in 0..<3 { try channel.send(value) }
    try co_delay(.milliseconds(60))
    if source == "job" { receiver.cancel(Oops("outside")) }
    #expect(outcome { _ = try receiver.join() } == (source == "job" ? "Oops(outside)" : "TimeoutError"))
    #expect(try channel.receiveAll() == [0, 1, 2])
  }

  @Test func `values that are put back go to waiting receivers`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>()
      let batch = co_launch { try channel.receive(count: 3) }
      try co_yield()
      try channel.send(1)
      try co_yield()
      // The batch waits again, as the first; this one waits behind the batch.
      let other = co_launch { try channel.receive() }
      try co_yield()
      batch.cancel()
      #expect(try other.join() == 1)
      #expect(channel.count == 0)
    }
  }

  @Test func `the values of a receive that is cancelled together with the channel reach the hook`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int> { dropped("\($0)") }
      let batch = co_launch { try channel.receive(count: 3) }
      try co_yield()
      try channel.send(1)
      try co_yield()
      batch.cancel()
      channel.cancel()
      #expect(outcome { try batch.join() } == "CancellationError")
    }
    #expect(dropped.all == ["1"])
  }

  @Test(.inWorlds) func `a select receives all that is there, waits for the first, and gets none at the end`() throws {
    let channel = Channel<Int>(3)
    for value in 1...3 { try channel.send(value) }
    let sender = co_launch { try channel.send(4) }
    try settleWorld()
    let view = channel.receiveOnly
    #expect(try co_select { view.onReceiveAll { $0 } } == [1, 2, 3, 4], "the waiting sender's too")
    try sender.join()
    #expect(try co_select { channel.onReceiveAll { $0.count }.otherwise { -1 } } == -1)
    let job = co_launch { try co_select { channel.onReceiveAll { $0 } } }
    try settleWorld()
    try channel.send(5)
    #expect(try job.join() == [5])
    try channel.send(6)
    channel.close(Oops("done"))
    #expect(try co_select { channel.onReceiveAll { $0 } } == [6])
    #expect(outcome { try co_select { channel.onReceiveAll { $0 } } } == "Oops(done)")
    let other = Channel<Int>()
    other.close()
    #expect(try co_select { other.onReceiveAll { $0.count } } == 0)
  }
}
