import Coroutine
import Dispatch
import Glibc
import Synchronization
import Testing

@Suite("Stress: children that are cancelled as their queue becomes free", .timeLimit(.minutes(10)))
struct DroppedChildStressTests {
  /// What one scope has seen.
  private struct Tally: Sendable {
    var ran = 0
    var never = 0
    var wrong = 0
  }

  private static let size = 6

  @Test func `each runs or never does, uses no frame after its scope, and leaves nothing behind`() async throws {
    let stress = Stress()
    var total = Tally()
    let blocked = queues(2)
    for round in 0..<stress.rounds(1_000, least: 50) {
      var random = stress.random(round)
      let objects = Census()
      for queue in blocked { queue.suspend() }
      let (launched, go) = (Promise<Scope>(), Census())
      // So that both ends come on any machine: in some rounds a child begins before the cancellation, in some none.
      let certain = round % 8 < 2 ? round % 8 : nil
      let (begun, cancelled) = (Census(), Census())
      let kind = certain == nil ? random.next() % 4 : 1
      let (rest, pause) = (Int(random.next() % 64), Int(random.next() % 64))
      let owner = co_launch {
        try Self.open(blocked, objects, launched, go, begun, isDeadline: kind == 0)
      }
      let scope = try await launched.value
      try await onThreads(2) { thread in
        go.change()
        for _ in 0..<(thread == 0 ? rest : pause) { _ = objects.now }
        if thread == 0 {
          while certain == 1, cancelled.now == 0 { sched_yield() }
          for queue in blocked { queue.resume() }
        } else {
          while certain == 0, begun.now == 0 { sched_yield() }
          if kind == 1 { scope.cancel(Mark(number: round)) } else if kind > 1 { owner.cancel(Mark(number: round)) }
          cancelled.change()
        }
      }
      let tally = try await owner.value
      total.ran += tally.ran
      total.never += tally.never
      total.wrong += tally.wrong
      #expect(tally.wrong == 0, "kind \(kind), round \(round). \(stress.replay)")
    }
    #expect(total.ran > 0 && total.never > 0, "\(total). \(stress.replay)")
  }

  /// Opens a scope with children that use this frame, and says what they have done.
  private static func open(
    _ blocked: [DispatchQueue],
    _ objects: Census,
    _ launched: Promise<Scope>,
    _ go: Census,
    _ begun: Census,
    isDeadline: Bool
  ) throws -> Tally {
    try withUnsafeTemporaryAllocation(of: Int.self, capacity: size) { words in
      words.initialize(repeating: 0)
      // Sound because no child uses the frame when its scope has ended, which the test is about.
      nonisolated(unsafe) let words = words
      let body: (Scope) throws -> Void = { scope in
        for index in 0..<size {
          let held = objects.citizen()
          scope.launch(on: blocked[index % 2]) {
            held.use()
            begun.change()
            words[index] += 1
            if index.isMultiple(of: 3) { try co_yield() }
            words[index] += 1
          }
        }
        launched.fulfill(scope)
        while go.now < 2 { try co_shield { try co_yield() } }
        if isDeadline { try co_delay(.seconds(600)) }
      }
      do {
        if isDeadline {
          try co_timeout(.microseconds(50)) { try co_scope(failures: .isolated, body) }
        } else {
          try co_scope(failures: .isolated, body)
        }
      } catch is TimeoutError {
      } catch is CancellationError {
      } catch is Mark {
      }
      var tally = Tally()
      for index in 0..<size {
        let steps = words[index]
        if steps == 0 { tally.never += 1 } else { tally.ran += 1 }
        words[index] = 100
      }
      for _ in 0..<10 { try co_shield { try co_yield() } }
      for index in 0..<size where words[index] != 100 { tally.wrong += 1 }
      return tally
    }
  }
}
