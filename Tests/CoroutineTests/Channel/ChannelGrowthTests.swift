import Dispatch
import Synchronization
import Testing

@testable import Coroutine

private func taken(from channel: Channel<Int>) -> Int? {
  if case .received(let value) = channel.tryReceive() { return value }
  return nil
}

/// The memory of a channel's buffer is allocated without its lock, so others use the channel meanwhile.
@Suite("A channel loses nothing while its buffer grows", .timeLimit(.minutes(10)))
struct ChannelGrowthTests {
  @Test(arguments: [Channel<Int>.Capacity.unbounded, .bounded(30_000), .dropOldest(30_000)])
  func `and keeps its order, through many rises and falls`(_ capacity: Channel<Int>.Capacity) {
    let channel = Channel<Int>(capacity)
    var (sent, received) = (0, 0)
    for round in 1...30 {
      for _ in 0..<(round * 97) {
        #expect(channel.trySend(sent) == .sent)
        sent += 1
      }
      for _ in 0..<(round * 71) {
        #expect(taken(from: channel) == received)
        received += 1
      }
      #expect(channel.count == sent - received)
    }
    while let value = taken(from: channel) {
      #expect(value == received)
      received += 1
    }
    #expect(received == sent)
  }

  @Test func `up to a limit that is larger than its first memory, with a sender that waits`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(.bounded(20_000))
      // In the second round the buffer begins without memory: `receiveAll` has taken it.
      for _ in 0..<2 {
        for value in 0..<20_000 { #expect(channel.trySend(value) == .sent) }
        #expect(channel.trySend(-1) == .full)
        let sender = co_launch { for value in 20_000..<20_010 { try channel.send(value) } }
        try co_yield()
        for value in 0..<10 { #expect(try channel.receive() == value) }
        try sender.join()
        #expect(try channel.receiveAll() == Array(10..<20_010))
      }
    }
  }

  @Test func `and drops the oldest value only at its limit`() {
    let channel = Channel<Int>(.dropOldest(20_000))
    for value in 0..<45_000 { #expect(channel.trySend(value) == .sent) }
    #expect(channel.count == 20_000)
    for value in 25_000..<45_000 { #expect(taken(from: channel) == value) }
    #expect(taken(from: channel) == nil)
  }

  @Test func `by the sends of selects, of which each sends one value to one channel`() async throws {
    try await onSerialQueue {
      let (one, other) = (Channel<Int>(.unbounded), Channel<Int>(.unbounded))
      for value in 0..<5_000 {
        try co_select {
          one.onSend(value) {}
          other.onSend(value) {}
            .otherwise { Issue.record("An unbounded channel has room.") }
        }
      }
      let (first, second) = (try one.receiveAll(), try other.receiveAll())
      #expect(first == first.sorted() && second == second.sorted())
      #expect((first + second).sorted() == Array(0..<5_000))
    }
  }

  /// Threads send while one receives, and while the channel is closed; its memory is taken away as well.
  @Test(arguments: [Channel<Int>.Capacity.unbounded, .bounded(100_000), .dropOldest(100_000)], [false, true])
  func `whatever other threads do meanwhile`(_ capacity: Channel<Int>.Capacity, takesMemory: Bool) async throws {
    let (senders, each) = (3, 10_000)
    let lost = Locked<[Int]>([])
    let channel = Channel<Int>(capacity) { value in lost.withLock { $0.append(value) } }
    let sending = Atomic<Int>(senders)
    let accepted = Atomic<Int>(0)
    let received = try await onOwnThread {
      var received: [Int] = []
      let group = DispatchGroup()
      for sender in 0..<senders {
        DispatchQueue.global().async(group: group) {
          for index in 0..<each where channel.trySend(sender * each + index) == .sent {
            accepted.wrappingAdd(1, ordering: .relaxed)
          }
          sending.wrappingSubtract(1, ordering: .releasing)
        }
      }
      while received.count < senders * each / 2, sending.load(ordering: .acquiring) > 0 {
        if takesMemory {
          channel.takeAll(&received, .max)
        } else if let value = taken(from: channel) {
          received.append(value)
        }
      }
      // Some senders are refused, some are on their way with new memory.
      channel.close()
      group.wait()
      while let value = taken(from: channel) { received.append(value) }
      return received
    }
    #expect(lost.current == [])
    #expect(received.count == accepted.load(ordering: .relaxed))
    for sender in 0..<senders {
      let own = received.filter { $0 / each == sender }
      #expect(own == Array(sender * each..<sender * each + own.count))
    }
  }

  /// The ways to take values from a channel.
  enum Taking: CaseIterable { case receive, tryReceive, receiveAll, count, select, forEach, async }

  @Test(arguments: Taking.allCases)
  func `and gives the memory of a burst back when it is empty`(_ taking: Taking) async throws {
    for capacity in [Channel<Int>.Capacity.unbounded, .bounded(100_000), .dropOldest(100_000)] {
      let channel = Channel<Int>(capacity)
      let count = 20_000
      for round in 0..<2 {
        for value in 0..<count { _ = channel.trySend(value) }
        #expect(channel.count == count)
        #expect(channel.state.ring.capacity >= count)
        if taking == .async {
          var next = channel.makeAsyncIterator()
          for value in 0..<count {
            if try await next.next() != value { Issue.record("\(value) did not come") }
          }
        } else {
          try await onCoroutine { try Self.take(count, taking, channel) }
        }
        #expect(channel.state.ring.capacity <= 2 * Ring<Int>.usual, "in round \(round)")
        // It works as before.
        _ = channel.trySend(1)
        #expect(taken(from: channel) == 1)
      }
    }
  }

  private static func take(_ count: Int, _ taking: Taking, _ channel: Channel<Int>) throws {
    struct Enough: Error {}
    var received = 0
    func check(_ value: Int?) {
      if value != received { Issue.record("\(received) did not come") }
      received += 1
    }
    while received < count {
      switch taking {
      case .receive: check(try channel.receive())
      case .tryReceive: check(taken(from: channel))
      // Fewer than `many`, so that they are taken one by one.
      case .count: for value in try channel.receive(count: 500) { check(value) }
      case .receiveAll: for value in try channel.receiveAll() { check(value) }
      case .select: check(try co_select { channel.onReceive { $0 } })
      case .forEach:
        do {
          try channel.forEach { value in
            check(value)
            if received == count { throw Enough() }
          }
        } catch is Enough {}
      case .async: return
      }
    }
  }

  @Test func `an idle mailbox keeps no burst`() async throws {
    let (gate, done) = (Gate(), Gate())
    let actor = co_actor(of: Int.self) { mailbox in
      try gate.pass()
      while let number = try mailbox.receive() { if number == 0 { done.open() } }
    }
    for number in (0..<20_000).reversed() { _ = actor.tryTell(number) }
    gate.open()
    try await done.value
    #expect(actor.core.channel.state.ring.capacity <= 2 * Ring<Envelope<Int>>.usual)
    actor.stop()
    try await actor.job.value
  }

  @Test func `and a channel that pulses below that size allocates nothing again`() {
    let channel = Channel<Int>(.unbounded)
    for value in 0..<4_000 { _ = channel.trySend(value) }
    let memory = channel.state.ring.storage
    for _ in 0..<20 {
      while taken(from: channel) != nil {}
      for value in 0..<4_000 { _ = channel.trySend(value) }
      #expect(channel.state.ring.storage == memory)
    }
  }

  @Test func `and releases what is left in it`() async {
    weak var first: Tracked?
    weak var last: Tracked?
    do {
      let channel = Channel<Tracked>(.unbounded)
      for index in 0..<100 {
        let value = Tracked {}
        if index == 0 { first = value }
        if index == 99 { last = value }
        #expect(channel.trySend(value) == .sent)
      }
      #expect(first != nil && last != nil)
    }
    // A report that another test makes may hold the channel, and its values, for a moment.
    while first != nil || last != nil, !Task.isCancelled { await Task.yield() }
    #expect(first == nil && last == nil)
  }
}
