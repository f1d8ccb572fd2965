import Dispatch
import Synchronization
import Testing

@testable import Coroutine

private func taken(from channel: Channel<Int>) -> Int? {
  if case .received(let value) = channel.tryReceive() { return value }
  return nil
}

/// The memory of a channel's buffer is allocated without its lock, so others use the channel meanwhile.
@Suite("A channel loses nothing while its buffer grows", .timeLimit(.minutes(5)))
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

  @Test func `and releases what is left in it`() {
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
    #expect(first == nil && last == nil)
  }
}
