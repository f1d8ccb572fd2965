import Coroutine
import CoroutineTesting
import Dispatch
import Testing

// The code of the article TestingConcurrentCode.md.

private struct WrongBalance: Error {
  let balance: Int
  init(_ balance: Int) { self.balance = balance }
}

final class Account: @unchecked Sendable {
  // Sound because every coroutine that uses an account runs on the account's queue.
  private(set) var balance: Int
  private let limit: @Sendable () throws -> Int

  init(balance: Int, limit: @escaping @Sendable () throws -> Int) {
    self.balance = balance
    self.limit = limit
  }

  func withdraw(_ amount: Int) throws {
    let seen = balance
    guard try seen - amount >= -limit() else { return }
    balance = seen - amount
  }
}

extension Account {
  func withdraw(_ amount: Int, holding lock: FairMutex) throws {
    try lock.withLock { try withdraw(amount) }
  }
}

@Sendable func twoWithdrawals() throws {
  let bank = DispatchQueue(label: "bank")
  let account = Account(balance: 100) {
    try co_delay(.milliseconds(5))
    return 0
  }
  let withdrawals = (1...2).map { number in
    co_launch(on: bank, name: "withdrawal \(number)") { try account.withdraw(30) }
  }
  for withdrawal in withdrawals { try withdrawal.join() }
  if account.balance != 40 { throw WrongBalance(account.balance) }
}

@Suite(.timeLimit(.minutes(5)))
struct ArticleTests {
  @Test func `the article's bug is found, and its repair is proven`() throws {
    let found = explore(.exhaustive(preemptions: 2), twoWithdrawals)
    let failure = try #require(found.failure)
    #expect(
      failure.description.hasPrefix(
        """
        WrongBalance(balance: 70)

        CO_REPLAY=10
        0 switches, 0 faults, 0.005 seconds of virtual time
        """
      )
    )
    let repaired = explore(.exhaustive(preemptions: 2)) {
      let account = Account(balance: 100) {
        try co_delay(.milliseconds(5))
        return 0
      }
      let bank = DispatchQueue(label: "bank")
      let lock = FairMutex()
      let withdrawals = (1...2).map { _ in co_launch(on: bank) { try account.withdraw(30, holding: lock) } }
      for withdrawal in withdrawals { try withdrawal.join() }
      if account.balance != 40 { throw WrongBalance(account.balance) }
    }
    #expect(repaired.isComplete && repaired.failure == nil)
  }
}
