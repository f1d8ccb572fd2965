import Coroutine
import CoroutineTesting
import Harness

/// Three coroutines of five steps each: 15! / (5!)³ schedules.
enum Schedules {
  static let all = 756_756

  /// The steps are apart by points, so every order of two steps may matter.
  @Sendable static func atPoints() throws {
    try three { _ in for _ in 0..<4 { co_point() } }
  }

  /// The steps are apart by sends, each coroutine to a channel of its own.
  @Sendable static func atChannels() throws {
    try three { _ in
      let channel = Channel<Int>(.unbounded)
      for number in 0..<4 { try channel.send(number) }
    }
  }

  /// Runs three coroutines, and nothing beside them.
  ///
  /// A timer launches them while the body is parked, and the last of them wakes the body. If the body launched them,
  /// its own wait would be one more step, which each schedule could have anywhere.
  private static func three(_ body: @escaping @Sendable (Int) throws -> Void) throws {
    let ended = WaitGroup()
    ended.add(3)
    _ = Promise<Void>.after(.nanoseconds(1)).then {
      for number in 0..<3 {
        co_launch {
          try body(number)
          ended.done()
        }
      }
    }
    try ended.wait()
  }

  static func count(_ sharing: Exploration.Sharing, _ body: @escaping @Sendable () throws -> Void) -> Int {
    let found = explore(.exhaustive(preemptions: .max), sharing: sharing, body)
    if let failure = found.failure { fail("\(failure)") }
    if !found.isComplete { fail("the search gave up after \(found.runs) schedules") }
    return found.runs
  }
}
