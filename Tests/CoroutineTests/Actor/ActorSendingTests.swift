import Coroutine
import Testing

/// A value that is not Sendable.
private final class Parcel {
  var stamps = 0
}

private enum ParcelMessage {
  case stamp(Parcel, Reply<Parcel>)
  case keep(Parcel)
  case count(Reply<Int>)
}

@Suite("Actors: messages that are not Sendable", .timeLimit(.minutes(10)))
struct ActorSendingTests {
  @Test func `messages and answers that are not Sendable go to one receiver`() async throws {
    let stamps = try await onSerialQueue {
      let clerk = co_actor(of: ParcelMessage.self) { mailbox in
        var kept = 0
        while let delivery = try mailbox.receive() {
          switch delivery {
          case .stamp(let parcel, let reply):
            parcel.stamps += 1
            reply(parcel)
          case .keep(let parcel): kept += parcel.stamps == 2 ? 10 : 1
          case .count(let reply): reply(kept)
          }
        }
      }
      let parcel = try clerk.ask { .stamp(Parcel(), $0) }
      parcel.stamps += 1
      let stamps = parcel.stamps
      try clerk.tell(.keep(parcel))
      #expect(clerk.tryTell(.keep(Parcel())) == .sent)
      #expect(try clerk.ask { .count($0) } == 11)
      return stamps
    }
    #expect(stamps == 2)
  }

  @Test func `a message that is not Sendable can be stashed, and a full stash throws its error only`() async throws {
    let kept = try await onSerialQueue {
      let actor = co_actor(of: Parcel.self) { mailbox in
        guard let first = try mailbox.receive() else { return }
        do throws(MailboxStashFullError) {
          try mailbox.stash(first, limit: 1)
          try mailbox.stash(Parcel(), limit: 1)
          Issue.record("the stash took more than its limit")
        } catch {
          #expect(error.limit == 1)
        }
        mailbox.unstash()
        #expect(try mailbox.receive()?.stamps == 7)
      }
      let parcel = Parcel()
      parcel.stamps = 7
      try actor.tell(parcel)
      actor.stop()
      try actor.job.join()
      return actor.tryTell(Parcel())
    }
    #expect(kept == .closed)
  }

  @Test func `tell, tryTell and the case of an enum may be passed as functions if the messages are Sendable`()
    async throws
  {
    enum Command: Sendable {
      case add(Int)
      case total(Reply<Int>)
    }
    try await onSerialQueue {
      let counter = co_actor(of: Command.self) { mailbox in
        var total = 0
        while let command = try mailbox.receive() {
          switch command {
          case .add(let amount): total += amount
          case .total(let reply): reply(total)
          }
        }
      }
      try [Command.add(1), .add(2)].forEach(counter.tell)
      #expect([Command.add(3)].map(counter.tryTell) == [.sent])
      #expect(try counter.ask(Command.total) == 6)
    }
  }

  @Test func `forEach and Behavior take named functions without sending`() async throws {
    let seen = Trace()
    @Sendable func take(_ parcel: Parcel) { seen("\(parcel.stamps)") }
    @Sendable func handle(_ parcel: Parcel) -> Behavior<Parcel>.Next {
      seen("first \(parcel.stamps)")
      return .stop
    }
    try await onSerialQueue {
      let actor = co_actor(of: Parcel.self) { mailbox in
        try mailbox.run(Behavior(handle))
        try mailbox.forEach(take)
      }
      for _ in 0..<2 { try actor.tell(Parcel()) }
      actor.stop()
      try actor.job.join()
    }
    #expect(seen.all == ["first 0", "0"])
  }
}
