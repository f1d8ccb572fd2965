import Testing

@testable import Coroutine

@Suite("Views of a channel", .timeLimit(.minutes(10)))
struct ChannelViewTests {
  @Test(.inWorlds) func `one view sends what the other receives`() throws {
    let channel = Channel<Int>(3)
    let (input, output) = (channel.sendOnly, channel.receiveOnly)
    #expect(input.capacity == 3 && output.capacity == .bounded(3) && channel.capacity.limit == 3)
    try input.send(1)
    #expect(input.trySend(2) == .sent)
    try co_select { input.onSend(3) {} }
    #expect(input.trySend(4) == .full)
    #expect(output.count == 3)
    #expect(try output.receive() == 1)
    #expect(try co_select { output.onReceive { $0 } } == 2)
    if case .received(let value) = output.tryReceive() { #expect(value == 3) } else { Issue.record("nothing") }
    try input.send(5)
    input.close()
    #expect(input.isClosed && output.isClosed)
    var rest: [Int] = []
    try output.forEach { rest.append($0) }
    #expect(rest == [5])
  }

  @Test func `a receiving view is an async sequence, and can cancel`() async throws {
    let dropped = Locked<[Int]>([])
    let channel = Channel<Int>(8) { value in dropped.withLock { $0.append(value) } }
    for number in 1...4 { #expect(channel.trySend(number) == .sent) }
    var first: [Int] = []
    for try await number in channel.receiveOnly {
      first.append(number)
      if number == 2 { break }
    }
    channel.receiveOnly.cancel()
    #expect(first == [1, 2] && dropped.withLock { $0 } == [3, 4])
    #expect(Channel<Int>(.dropOldest(2)).capacity == .dropOldest(2))
    #expect(Channel<Int>().capacity == .rendezvous && Channel<Int>(.unbounded).capacity == .unbounded)
  }
}
