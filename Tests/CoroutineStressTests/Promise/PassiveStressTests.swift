import Coroutine
import Testing

/// Promises that only pass outcomes on leave their source when nothing refers to them.
///
/// Here that happens while the source settles, is cancelled or is released, and while others begin and cease to wait.
@Suite("Stress: promises that pass outcomes on and are dropped", .timeLimit(.minutes(10)))
struct PassiveStressTests {
  private static let threads = 4

  /// Makes a promise that passes the outcome of `source` on.
  private static func passing(_ source: Promise<Int>, _ random: inout some RandomNumberGenerator) -> Promise<Int> {
    switch Int.random(in: 0..<5, using: &random) {
    case 0: .race([source, source.uncancelled])
    case 1: .any([source.uncancelled, source.uncancelled])
    case 2: source.uncancelled.uncancelled
    case 3: .race([.race([source, source]), .any([source.uncancelled, source])])
    default: source.uncancelled
    }
  }

  /// What a thread does with a promise that passes an outcome on: it drops it at once, or after a consumer or two.
  private static func use(
    _ passing: Promise<Int>,
    _ value: Int,
    _ random: inout some RandomNumberGenerator,
    _ seen: Seen
  ) {
    switch Int.random(in: 0..<8, using: &random) {
    case 0: break
    case 1: passing.observe { _ in }.cancel()
    case 2: passing.then { $0 }.cancel()
    case 3: passing.cancel()
    case 4: passing.fulfill(value)
    case 5: passing.asVoid().ignore()
    case 6:
      let observation = passing.observe { _ in }
      seen.expect(passing.tap { seen.note($0, value) })
      observation.cancel()
    default: seen.expect(passing.tap { seen.note($0, value) })
    }
    passing.ignore()
  }

  @Test func `consumers get the one outcome, and nothing is left, while four threads make and drop them`() async throws
  {
    let stress = Stress()
    let objects = Census()
    for round in 0..<stress.rounds(1_500) {
      let seen = Seen(objects.citizen())
      // Rounds with a job have a copy of its result, which is released while the job goes on.
      let gate = Promise<Int>()
      let source = ThreadMutex<Promise<Int>?>(
        round % 3 == 0 ? co_launch { try co_await(gate) }.uncancelled : Promise<Int>()
      )
      try await onThreads(Self.threads) { thread in
        var random = stress.random(round * Self.threads + thread)
        for step in 0..<12 {
          if let source = source.withLock({ $0 }) { Self.use(Self.passing(source, &random), round, &random, seen) }
          guard thread == 0, step == 6 else { continue }
          switch Int.random(in: 0..<4, using: &random) {
          case 0: source.withLock { $0 }?.reject(Mark(number: round))
          case 1: source.withLock { $0.take() }?.ignore()
          case 2: gate.fulfill(round)
          default: source.withLock { $0 }?.fulfill(round)
          }
        }
      }
      gate.fulfill(round)
      source.withLock { $0.take() }?.fulfill(round)
      try await seen.allCalled()
      #expect(seen.wrong == 0, "round \(round), \(stress.replay)")
    }
    await until(objects, shows: 0)
  }
}

/// Counts the handlers that are attached and those that ran.
private final class Seen: Sendable {
  private let (attached, called, wrongs) = (Census(), Census(), Census())
  private let citizen: Census.Citizen

  init(_ citizen: Census.Citizen) { self.citizen = citizen }

  var wrong: Int { wrongs.now }

  func expect(_ link: Promise<Int>) {
    attached.change()
    link.ignore()
  }

  func note(_ outcome: Result<Int, any Error>, _ value: Int) {
    citizen.use()
    if case .success(let other) = outcome, other != value { wrongs.change() }
    called.change()
  }

  func allCalled() async throws { await until(called, shows: attached.now) }
}
