import Coroutine
import Driving
import Harness

// An actor and its clients on one serial queue. A tell is counted with its handling: a row that only fills a mailbox
// would measure memory.

func addActors(to suite: inout Suite) {
  suite.row("actor_tell", 4_000_000) { count in
    let sum = try onQueue { try tellInBursts(count) }
    expect(sum, equals: count / 100 * 100, "sum of what was told")
  }
  suite.row("actor_ask", 2_000_000) { count in
    let sum = try onQueue {
      let actor = adder()
      var sum = 0
      for _ in 0..<count { sum = try actor.ask { .addAndGet(1, $0) } }
      return sum
    }
    expect(sum, equals: count, "sum of what was told")
  }
}

private enum Command: Sendable {
  case add(Int)
  case addAndGet(Int, Reply<Int>)
}

private func adder() -> ActorRef<Command> {
  co_actor { mailbox in
    var sum = 0
    while let command = try mailbox.receive() {
      switch command {
      case .add(let amount): sum += amount
      case .addAndGet(let amount, let reply):
        sum += amount
        reply(sum)
      }
    }
  }
}

/// A hundred tells, then the teller gives way and the actor handles them.
private func tellInBursts(_ count: Int) throws -> Int {
  let actor = adder()
  for _ in 0..<(count / 100) {
    for _ in 0..<100 { try actor.tell(.add(1)) }
    try co_yield()
  }
  return try actor.ask { .addAndGet(0, $0) }
}
