import Coroutine
import Testing

/// A value larger than the words of a select's waiter.
struct Large: Sendable, Equatable {
  var words = InlineWords()
  var text: String

  struct InlineWords: Sendable, Equatable {
    var first = (1, 2, 3, 4, 5, 6, 7, 8)
    var second = (9, 10, 11, 12, 13, 14, 15, 16)
    static func == (one: Self, other: Self) -> Bool { one.first.0 == other.first.0 && one.second.7 == other.second.7 }
  }
}

/// An existential of two words that holds an object.
private protocol Labelled: AnyObject, Sendable { var label: String { get } }
private final class Label: Labelled {
  let label: String
  init(_ label: String) { self.label = label }
}

@Suite("Channel: values of every kind", .timeLimit(.minutes(10)))
struct ChannelValuesTests {
  /// Through a buffer, a hand-off to a receiver, a hand-off from a sender, and both cases of a select.
  private func passThrough<Value: Sendable>(_ values: [Value]) async throws -> [Value] {
    try await onSerialQueue { try passThroughHere(values) }
  }

  private func passThroughHere<Value: Sendable>(_ values: [Value]) throws -> [Value] {
    var received: [Value] = []
    for value in values {
      let buffered = Channel<Value>(1)
      let rendezvous = Channel<Value>()
      try buffered.send(value)
      received.append(try buffered.receive()!)
      let receiver = co_launch { try rendezvous.receive()! }
      try co_yield()
      try rendezvous.send(value)
      received.append(try receiver.join())
      let sender = co_launch { try rendezvous.send(value) }
      try co_yield()
      received.append(try rendezvous.receive()!)
      try sender.join()
      let selecting = co_launch { try co_select { rendezvous.onReceive { $0! } } }
      try co_yield()
      try co_select { rendezvous.onSend(value) {} }
      received.append(try selecting.join())
      let offering = co_launch { try co_select { rendezvous.onSend(value) {} } }
      try co_yield()
      received.append(try co_select { rendezvous.onReceive { $0! } })
      try offering.join()
    }
    return received
  }

  @Test func `numbers, texts and structs larger than any waiter`() async throws {
    #expect(try await passThrough([7]) == Array(repeating: 7, count: 5))
    let text = "a text that does not fit into sixteen bytes"
    #expect(try await passThrough([text]) == Array(repeating: text, count: 5))
    let large = Large(text: text)
    #expect(try await passThrough([large]) == Array(repeating: large, count: 5))
    #expect(try await passThrough([(1, 2, 3, 4)]).map(\.3) == Array(repeating: 4, count: 5))
    #expect(try await passThrough([(1, 2, 3, 4, 5)]).map(\.4) == Array(repeating: 5, count: 5))
  }

  @Test func `Void, optionals and existentials`() async throws {
    #expect(try await passThrough([()]).count == 5)
    #expect(try await passThrough([Int?.none, 3]) == Array(repeating: nil, count: 5) + Array(repeating: 3, count: 5))
    let errors: [any Error] = [Oops("one")]
    let tracked: [any Labelled] = [Label("an object behind a protocol")]
    let labels = try await passThrough(tracked).map(\.label)
    #expect(labels == Array(repeating: "an object behind a protocol", count: 5))
    #expect(try await passThrough(errors).map { name(of: $0) } == Array(repeating: "Oops(one)", count: 5))
  }

  @Test func `objects are held exactly while the channel has them`() async throws {
    // In a process of its own: a dump that another test takes holds all jobs for a moment, and a job its result.
    await #expect(processExitsWith: .success) {
      let trace = Trace()
      // On the queue, because elsewhere a job that has just ended may hold its result a moment longer.
      let seen = try await onSerialQueue {
        let received = try ChannelValuesTests().passThroughHere([Tracked("object", trace)])
        let before = trace.all
        for object in received { object.use() }
        _ = consume received
        return before + ["then"] + trace.all
      }
      #expect(seen == ["then", "released object"])
    }
  }

  @Test func `objects that are never received are released once`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let channel = Channel<Tracked>(1)
      try channel.send(Tracked("buffered", trace))
      let closedOver = co_launch { try channel.send(Tracked("closed over", trace)) }
      let selecting = co_launch {
        try co_select {
          channel.onSend(Tracked("closed over in a select", trace)) {}
          Channel<Tracked>().onSend(Tracked("losing", trace)) {}
        }
      }
      try co_yield()
      channel.close()
      #expect(outcome { try closedOver.join() } == "ChannelClosedError")
      #expect(outcome { try selecting.join() } == "ChannelClosedError")
      channel.cancel()
    }
    #expect(
      trace.all.sorted() == ["buffered", "closed over", "closed over in a select", "losing"].map { "released \($0)" }
    )
  }
}
