import CoroutineTesting
import Dispatch
import Glibc
import Testing

@testable import Coroutine

private actor Purse {
  private(set) var balance = 100
  private let journal = PurseJournal()

  func withdraw(_ amount: Int) async {
    guard balance >= amount else { return }
    await journal.write()
    balance -= amount
  }
}

private actor PurseJournal {
  private var lines = 0
  func write() { lines += 1 }
}

private struct EmptyPurse: Error {}

/// Fails where both withdrawals have passed the check before one of them withdraws; takes an hour of the world.
@Sendable private func withdrawTwice() async throws {
  let account = Purse()
  let start = ContinuousClock.now
  async let first: Void = account.withdraw(60)
  async let second: Void = account.withdraw(60)
  _ = await (first, second)
  try await Task.sleep(for: .seconds(3_600))
  if await account.balance < 0 || ContinuousClock.now - start < .seconds(3_600) { throw EmptyPurse() }
}

/// Worlds of async code in a process whose Tasks run on the workers.
///
/// Each test is a process.
@Suite("Worlds, and Tasks on workers", .timeLimit(.minutes(10)))
struct WorldsAndWorkersTests {
  @Test func `the executor of Tasks is replaced while a world runs, and put back after the last one`() async {
    await #expect(processExitsWith: .success) {
      alarm(120)
      check(!DefaultExecutor.isReplaced)
      for _ in 0..<3 {
        let found = explore(.random(seeds: 3)) { () async throws in
          await Task.yield()
          check(DefaultExecutor.isReplaced)
        }
        check(found.failure == nil && found.runs == 3 && !DefaultExecutor.isReplaced)
        // The sleep of a Task that a world has left behind, and one outside.
        _ = explore(.random(seeds: 1)) { () async throws in Task { try await Task.sleep(for: .seconds(3_600)) } }
        try? await Task.sleep(for: .milliseconds(1))
        check(!DefaultExecutor.isReplaced)
      }
      check(CoroutineRuntime.runTasksOnWorkers() && DefaultExecutor.isReplaced)
      _ = explore(.random(seeds: 1)) { () async throws in await Task.yield() }
      check(DefaultExecutor.isReplaced)
      check(await Task.detached { isOnWorker }.value)
    }
  }

  @Test("worlds find what they find without", arguments: [true, false])
  func order(isPoolFirst: Bool) async {
    await #expect(processExitsWith: .success) { [isPoolFirst] in
      alarm(120)
      if isPoolFirst { check(CoroutineRuntime.runTasksOnWorkers()) }
      let first = explore(.random(), withdrawTwice).failure
      check(first?.error is EmptyPurse)
      if !isPoolFirst { check(CoroutineRuntime.runTasksOnWorkers()) }
      check(explore(.random(), withdrawTwice).failure?.error is EmptyPurse)
      // The same choices lead to the same failure.
      if let token = first?.token { check(explore(.replay(token), withdrawTwice).failure?.token == token) }
      // Outside of worlds Tasks, their sleeps and the main actor are where they belong.
      check(await Task.detached { isOnWorker }.value)
      try? await Task.sleep(for: .milliseconds(1))
      check(await Task.detached { isOnWorker }.value)
      let key = DispatchSpecificKey<Bool>()
      DispatchQueue.main.setSpecific(key: key, value: true)
      check(await MainActor.run { DispatchQueue.getSpecific(key: key) ?? false })
    }
  }

  @Test func `Tasks beside a world run on the workers while it explores`() async {
    await #expect(processExitsWith: .success) {
      alarm(120)
      check(CoroutineRuntime.runTasksOnWorkers())
      async let beside = withTaskGroup(of: Int.self) { group in
        for _ in 0..<100 {
          group.addTask {
            for _ in 0..<10 { try? await Task.sleep(for: .microseconds(100)) }
            return isOnWorker ? 1 : 0
          }
        }
        return await group.reduce(0, +)
      }
      for _ in 0..<5 { check(explore(.random(), withdrawTwice).failure?.error is EmptyPurse) }
      check(await beside == 100)
    }
  }
}

private var isOnWorker: Bool { WorkerPool.ofCaller === WorkerPool.shared }

private func check(_ isTrue: Bool, line: Int = #line) {
  if !isTrue {
    writeToStandardError("line \(line) of WorldsAndWorkersTests\n")
    _exit(1)
  }
}
