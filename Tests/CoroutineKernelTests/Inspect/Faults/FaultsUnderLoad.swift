import Coroutine
import Dispatch

// Faults that show in numbers, or at a stop. The article "Finding out why a server hangs" shows them, as those of
// FaultPrograms.swift; FaultsUnderLoadTests asks for each the tool that the article names.

extension Faults {
  // MARK: A consumer that is too slow

  @inline(never)
  static func store(_ order: Int) throws {
    try co_delay(.milliseconds(20))
    try co_checkCancelled()
  }

  func fallBehind() {
    let orders = Channel<Int>(1_000)
    co_launch(on: queue, name: "store") { try orders.forEach { order in try Faults.store(order) } }
    co_launch(on: queue, name: "take orders") { for number in 0... { try orders.send(number) } }
  }

  // MARK: Calls that are repeated at once

  @inline(never)
  static func callUntilItWorks(_ server: () throws -> Int) throws -> Int {
    while true {
      if let answer = try? server() { return answer }
      try co_yield()
    }
  }

  func repeatAtOnce(_ server: @escaping @Sendable () throws -> Int) {
    for number in 0..<40 {
      co_launch(on: queue, name: "call \(number)") { try Faults.callUntilItWorks(server) }
    }
  }

  // MARK: A cancellation that is swallowed

  func swallowTheCancellation(_ refresh: @escaping @Sendable () -> Void) -> Job<Void> {
    co_launch(name: "refresh prices") {
      while true {
        // After a cancellation the wait throws at once.
        try? co_delay(.seconds(1))
        refresh()
      }
    }
  }

  // MARK: A queue that is flooded

  func floodAQueue(_ index: @escaping @Sendable (Int) -> Void) {
    let indexer = DispatchQueue(label: "server.index")
    for number in 0..<5_000 { co_launch(on: indexer, name: "index") { index(number) } }
  }

  // MARK: Actors that ask each other

  enum Audit: Sendable {
    case check(Reply<Bool>)
  }

  func askEachOther() {
    let other = Channel<ActorRef<Audit>>(1)
    let accounts = co_actor(of: Audit.self, on: queue, name: "accounts") { mailbox in
      let ledger = try other.receive()
      while case .check(let reply) = try mailbox.receive() { reply(try ledger?.ask { .check($0) } ?? false) }
    }
    let ledger = co_actor(of: Audit.self, on: queue, name: "ledger") { mailbox in
      while case .check(let reply) = try mailbox.receive() { reply(try accounts.ask { .check($0) }) }
    }
    co_launch(on: queue, name: "audit") {
      try other.send(ledger)
      return try accounts.ask { .check($0) }
    }
  }

  // MARK: A stop that waits under a shield

  func flushAtTheEnd(_ flushed: Promise<Void>) -> Job<Void> {
    co_launch(on: queue, name: "flush") {
      try co_shield { try co_await(flushed) }
    }
  }
}
