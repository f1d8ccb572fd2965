import Coroutine

/// A loop on the thread that calls `run`.
final class Loop: CoroutineHost, @unchecked Sendable {
  // Sound because one thread does everything.
  private var drains: [HostedDrain] = []
  private var timer: HostedDrain?

  var coroutineLabel: String { "loop" }
  var isCurrentForCoroutines: Bool { false }
  func submit(_ drain: HostedDrain) { drains.append(drain) }
  func schedule(_ drain: HostedDrain, after delay: Duration) { timer = drain }
  func unschedule() { timer = nil }

  /// Runs drains until there are none, and no timer is set.
  func run() {
    while true {
      if !drains.isEmpty {
        drains.removeFirst()()
      } else if let due = timer {
        timer = nil
        due.timerFired()
      } else {
        return
      }
    }
  }
}

/// Runs `body` in a simulated world, first in, first out.
func inWorld(_ body: @escaping @Sendable () throws -> Bool) throws -> Bool {
  let policy = InOrder()
  return try SimulatedWorld(owner: policy, policy: policy, seed: 0).run(body)
}

private struct Found: Error { let text: String }

private final class InOrder: WorldPolicy {
  func chooseNext(_ candidates: UnsafeBufferPointer<Candidate>, continues: Bool, previous: UInt64) -> Int { 0 }
  func choose(_ count: Int) -> Int { 0 }
  func chooseFault(_ name: StaticString) -> Bool { false }
  func chooseLate() -> Bool { false }
  func chooseSplit() -> Bool { false }
  func stepFinished(_ id: UInt64, isUniversal: Bool, tasks: [UInt64], _ isDependent: (UInt64) -> Bool) {}
  func stepEnded(_ step: SimulatedStep) {}
  func deadlock(_ dump: String) -> any Error { Found(text: dump) }
  func leftRunning(_ dump: String) -> any Error { Found(text: dump) }
  func realWait(_ wait: String) -> any Error { Found(text: wait) }
  func unhandled(_ error: CoroutineRuntime.UnhandledError) -> any Error { error.error }
  func overLimit(_ limit: UInt64?, _ dump: String) -> any Error { Found(text: dump) }
}
