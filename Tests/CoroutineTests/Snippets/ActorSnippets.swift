import Coroutine
import Testing

/// The code that docs/actors.md shows, run; scripts/lint holds the page against this file.
@Suite("What docs/actors.md shows")
struct ActorSnippets {
  @Test func `an actor counts`() async throws {
    enum Command: Sendable {
      case add(Int)
      case total(Reply<Int>)
    }

    let counter = co_actor(of: Command.self) { mailbox in
      var total = 0
      while let command = try mailbox.receive() {
        switch command {
        case .add(let amount): total += amount
        case .total(let reply): reply(total)
        }
      }
    }
    try counter.tell(.add(40))
    try counter.tell(.add(2))
    let total = try await co_launch { try counter.ask { .total($0) } }.value
    #expect(total == 42)
  }

  private struct Entry: Sendable, Equatable { var name: String }
  private enum Question: Sendable {
    case find(String, Reply<Entry>)
  }

  @Test func `several asks at once`() async throws {
    let names = ["Ada", "Grace"]
    let directory = co_actor(of: Question.self) { mailbox in
      while case .find(let name, let reply)? = try mailbox.receive() { reply(Entry(name: name)) }
    }
    try await co_launch {
      let jobs = names.map { name in co_launch { try directory.ask { .find(name, $0) } } }
      let found = try co_all(jobs)  // [Entry]; the first failure cancels the rest
      let settled = try co_allSettled(jobs)  // [Result<Entry, any Error>]
      #expect(found == names.map { Entry(name: $0) })
      #expect(settled.count == 2)
    }.value
  }
}
