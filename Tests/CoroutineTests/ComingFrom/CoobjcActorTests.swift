import Dispatch
import Testing

@testable import Coroutine

/// The actors, tuples and batches of coobjc, as docs/coming-from/coobjc.md shows them.
@Suite("Coming from coobjc: actors, tuples, batches")
struct CoobjcActorTests {
  private enum Question: Sendable {
    case add(Int)
    case total(Reply<Int>)
    case status(Reply<(code: Int, text: String)>)
    case refuse(Reply<Int>)
    case ignore(Reply<Int>)
  }

  private func counter(on queue: DispatchQueue) -> ActorRef<Question> {
    co_actor(of: Question.self, on: queue) { mailbox in
      var total = 0
      while let message = try mailbox.receive() {
        switch message {
        case .add(let number): total += number
        case .total(let reply): reply(total)
        case .status(let reply): reply((200, "OK"))
        case .refuse(let reply): reply.fail(Oops("refused"))
        case .ignore: break
        }
      }
    }
  }

  @Test func `co_actor, sendMessage, complete, and a completable that is awaited`() async throws {
    let actor = counter(on: DispatchQueue(label: "counter"))
    let total = try await onCoroutine {
      try actor.tell(.add(1))
      try actor.tell(.add(2))
      return try actor.ask { .total($0) }
    }
    #expect(total == 3)
  }

  @Test func `sendMessage from a plain thread, whose promise may be ignored`() async throws {
    let actor = counter(on: DispatchQueue(label: "counter"))
    let promise = Promise<Int> { done in
      _ = actor.tryTell(.add(4))
      _ = actor.tryTell(.total(Reply(done)))
    }
    #expect(try await promise.value == 4)
  }

  @Test func `a completable can fail here, and one that nobody completes fails by itself`() async throws {
    let actor = counter(on: DispatchQueue(label: "counter"))
    try await onCoroutine {
      #expect(outcome { try actor.ask { .refuse($0) } } == "Oops(refused)")
      #expect(outcome { try actor.ask { .ignore($0) } } == "ReplyDroppedError")
      actor.cancel()
      #expect(outcome { try actor.ask { .total($0) } } == "ActorStoppedError")
    }
  }

  @Test func `co_tuple and co_unpack, in a message and in a result`() async throws {
    let actor = counter(on: DispatchQueue(label: "counter"))
    try await onCoroutine {
      let (code, text) = try actor.ask { .status($0) }
      #expect(code == 200 && text == "OK")
    }
  }

  @Test func `co_batch_await, with the first failure or with all outcomes`() async throws {
    let actor = counter(on: DispatchQueue(label: "counter"))
    try await onSerialQueue {
      let totals = (0..<3).map { _ in co_launch { try actor.ask { .total($0) } } }
      #expect(try co_all(totals) == [0, 0, 0])
      let mixed = [co_launch { try actor.ask { .total($0) } }, co_launch { try actor.ask { .refuse($0) } }]
      let settled = try co_allSettled(mixed)
      #expect(settled.map { outcome($0) } == ["0", "Oops(refused)"])
    }
  }
}
