import CoroutineTesting
import Testing

// Tests of a package that has no coroutine and uses nothing else of this one: they link CoroutineTesting alone.

actor Journal {
  private var lines: [String] = []
  func write(_ line: String) { lines.append(line) }
}

actor Account {
  private(set) var balance = 100
  private let journal = Journal()
  private let checksAgain: Bool
  init(checksAgain: Bool) { self.checksAgain = checksAgain }

  func withdraw(_ amount: Int) async {
    guard balance >= amount else { return }
    await journal.write("withdraw \(amount)")
    if checksAgain, balance < amount { return }
    balance -= amount
  }
}

struct Overdrawn: Error {}

@Sendable func withdrawTwice(checksAgain: Bool) async throws {
  let account = Account(checksAgain: checksAgain)
  async let first: Void = account.withdraw(60)
  async let second: Void = account.withdraw(60)
  _ = await (first, second)
  if await account.balance < 0 { throw Overdrawn() }
}

@Suite struct AsyncTests {
  @Test func `a bug is found, and its token repeats it`() throws {
    let body: @Sendable () async throws -> Void = { try await withdrawTwice(checksAgain: false) }
    let failure = try #require(explore(.random(), body).failure)
    #expect(failure.error is Overdrawn)
    #expect(explore(.replay(failure.token), body).failure?.token == failure.token)
  }

  @Test(.simulated(.exhaustive(preemptions: 1))) func `the mended one has none`() async throws {
    try await withdrawTwice(checksAgain: true)
  }

  @Test(.simulated()) @MainActor func `an hour takes no time`() async throws {
    let start = ContinuousClock.now
    try await Task.sleep(for: .seconds(3600))
    #expect(ContinuousClock.now - start == .seconds(3600))
  }
}
