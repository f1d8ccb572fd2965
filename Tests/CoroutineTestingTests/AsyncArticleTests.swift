import CoroutineTesting
import Testing

// The code of the page "Testing async code". It knows of no coroutine.

private actor Journal {
  private(set) var lines: [String] = []
  func write(_ line: String) { lines.append(line) }
}

private actor Savings {
  private(set) var balance = 100
  private let journal = Journal()

  func withdraw(_ amount: Int) async {
    guard balance >= amount else { return }
    await journal.write("withdraw \(amount)")
    balance -= amount
  }
}

private struct Overdrawn: Error {
  let balance: Int
}

@Sendable private func twoWithdrawals() async throws {
  let savings = Savings()
  async let first: Void = savings.withdraw(60)
  async let second: Void = savings.withdraw(60)
  _ = await (first, second)
  let left = await savings.balance
  if left < 0 { throw Overdrawn(balance: left) }
}

private actor SafeSavings {
  private(set) var balance = 100
  private let journal = Journal()

  func withdraw(_ amount: Int) async {
    guard balance >= amount else { return }
    balance -= amount
    await journal.write("withdraw \(amount)")
  }
}

/// The page's programs.
@Suite(.timeLimit(.minutes(10)))
struct AsyncArticleTests {
  @Test func `the page's bug is found, and its token repeats it`() throws {
    let found = explore(.random(), twoWithdrawals)
    let failure = try #require(found.failure)
    #expect(failure.error is Overdrawn)
    #expect(failure.description.contains("goes to Savings"))
    #expect(explore(.replay(failure.token), twoWithdrawals).failure?.token == failure.token)
  }

  @Test(.simulated(.exhaustive())) func `no money is lost`() async throws {
    let savings = SafeSavings()
    async let first: Void = savings.withdraw(60)
    async let second: Void = savings.withdraw(60)
    _ = await (first, second)
    #expect(await savings.balance == 40)
  }

  @Test(.simulated()) func `an hour passes at once`() async throws {
    let start = ContinuousClock.now
    try await Task.sleep(for: .seconds(3600))
    #expect(ContinuousClock.now - start == .seconds(3600))
  }
}
