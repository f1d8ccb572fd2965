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

@Sendable func fourWithdrawals() throws {
  let bank = DispatchQueue(label: "bank")
  let rules = FairMutex()
  let account = Account(balance: 100) { try rules.withLock { 0 } }
  let withdrawals = (1...4).map { number in
    co_launch(on: bank, name: "withdrawal \(number)") { try account.withdraw(20) }
  }
  for withdrawal in withdrawals { try withdrawal.join() }
  if account.balance != 20 { throw WrongBalance(account.balance) }
}

@Suite(.timeLimit(.minutes(10)))
struct ArticleTests {
  /// What the article shows of the output.
  private static let printed = """
    WrongBalance(balance: 40)

    CO_REPLAY=1c71
    1 switch, 0 faults, 0.0 seconds of virtual time
    shrunk from 7 switches, 0 faults, 0.0 seconds of virtual time

    #1 "body"                              #2 "withdrawal 1"  #3 "withdrawal 2"  #4 "withdrawal 3"  #5 "withdrawal 4"
    -------------------------------------  -----------------  -----------------  -----------------  -----------------
    waiting for a job (#2 "withdrawal 1")
                                           ended
                                                              ended
    waiting for a job (#4 "withdrawal 3")
                                                                                 interrupted
                                                                                                    ended
                                                                                 ended
    ended
    """

  @Test func `the article's bug is found, and its repair is proven`() throws {
    #expect(explore(.inOrder, fourWithdrawals).failure == nil)
    let found = explore(.random(from: 12), fourWithdrawals)
    let failure = try #require(found.failure)
    // The article leaves out where the coroutines were launched.
    let lines = failure.description.split(separator: "\n").filter { !$0.contains(", launched at ") }
    let printed = Self.printed.split(separator: "\n")
    #expect(lines.prefix(printed.count) == printed[...])
    #expect(explore(.replay(failure.token), fourWithdrawals).failure?.error is WrongBalance)
    let repaired = explore(.exhaustive(preemptions: 2)) {
      let bank = DispatchQueue(label: "bank")
      let (rules, lock) = (FairMutex(), FairMutex())
      let account = Account(balance: 100) { try rules.withLock { 0 } }
      let withdrawals = (1...4).map { _ in co_launch(on: bank) { try account.withdraw(20, holding: lock) } }
      for withdrawal in withdrawals { try withdrawal.join() }
      if account.balance != 20 { throw WrongBalance(account.balance) }
    }
    #expect(repaired.isComplete && repaired.failure == nil)
  }
}
