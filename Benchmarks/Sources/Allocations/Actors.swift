import Coroutine
import Harness

// A tell moves the message into the mailbox, which allocates only to grow. An ask allocates what the copies of its
// reply share.

func countActors(into counts: inout Counts) throws {
  try counts.countWithin("actor_tell", 1000) { count in
    let (actor, tally) = (tallying(), Tally())
    try actor.tell(.add(tally))
    try co_yield()
    return {
      for _ in 0..<count {
        try actor.tell(.add(tally))
        try co_yield()
      }
      expect(tally.value, equals: count + 1, "messages handled")
    }
  }
  try counts.countWithin("actor_ask", 1000) { count in
    let actor = tallying()
    _ = try actor.ask { .get($0) }
    return { for _ in 0..<count { expect(try actor.ask { .get($0) }, equals: 7, "the answer") } }
  }
}

private enum Message: Sendable {
  case add(Tally)
  case get(Reply<Int>)
}

private func tallying() -> ActorRef<Message> {
  co_actor { mailbox in
    while let message = try mailbox.receive() {
      switch message {
      case .add(let tally): tally.add(1)
      case .get(let reply): reply(7)
      }
    }
  }
}
