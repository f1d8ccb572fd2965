import Coroutine
import Dispatch
import Glibc
import Testing

private actor Plain {
  func visit() {}
}

@Suite("Stress: co_isolated against cancellation", .timeLimit(.minutes(10)))
struct IsolatedStressTests {
  /// A thread cancels each call at about the moment at which the actor begins its body; the body uses the caller's
  /// frame.
  @Test func `of a body that runs and a call that throws there is exactly one, and no frame is used after its end`()
    async throws
  {
    let stress = Stress()
    let size = 32
    let objects = Census()
    var (values, errors) = (0, 0)
    for round in 0..<stress.rounds(1_000, least: 20) {
      var random = stress.random(round)
      let actor = Plain()
      let (called, ran) = (Census(), Census())
      let jobs = (0..<size).map { index in
        let isDeadline = index.isMultiple(of: 5)
        return co_launch(on: index.isMultiple(of: 2) ? nil : DispatchQueue.global()) { [held = objects.citizen()] in
          called.change()
          let result = call(actor, held, ran, isDeadline ? .microseconds(20) : nil)
          return result.isConsistent ? (result.hasRun ? 1 : 0) : 2
        }
      }
      let order = Array(0..<size).shuffled(using: &random)
      // Where the calls are when they are cancelled differs from round to round.
      let first = Int(random.next() % UInt64(size))
      try await onThreads(1) { _ in
        while called.now < first {}
        // On a crowded machine the actor may come to no body before the cancellations: in some rounds it does.
        while round % 8 == 0, ran.now == 0 { sched_yield() }
        for index in order { jobs[index].cancel(Mark(number: index)) }
      }
      for job in jobs {
        // Cancelled before it has called, it fails.
        guard let outcome = try? await job.value else { continue }
        #expect(outcome < 2, "\(stress.replay)")
        if outcome == 1 { values += 1 } else { errors += 1 }
      }
      await actor.visit()
    }
    await until(objects, shows: 0)
    #expect(values > 0 && errors > 0, "\(values) bodies, \(errors) errors. \(stress.replay)")
  }
}

/// What a body changes in its caller's frame.
private struct Frame {
  var words = InlineArray<16, Int>(repeating: 1)
  var runs = 0

  mutating func run() -> Int {
    runs += 1
    for index in words.indices { words[index] += 1 }
    return words[7]
  }

  /// Whether each body has run completely.
  var isIntact: Bool { words.indices.allSatisfy { words[$0] == 1 + runs } }
}

/// Calls the actor with a body that uses this frame; says whether the body has run, and whether the outcome fits.
private func call(
  _ actor: Plain,
  _ held: Census.Citizen,
  _ ran: Census,
  _ deadline: Duration?
) -> (hasRun: Bool, isConsistent: Bool) {
  var frame = Frame()
  let result = withUnsafeMutablePointer(to: &frame) { frame in
    // Sound because the call returns only when no body can run any more, which the test is about.
    nonisolated(unsafe) let frame = frame
    return Result {
      guard let deadline else { return try isolated(actor, held, ran, frame) }
      return try co_timeout(deadline) { try isolated(actor, held, ran, frame) }
    }
  }
  switch result {
  case .success(let value): return (true, frame.runs == 1 && value == 2 && frame.isIntact)
  case .failure: return (frame.runs > 0, frame.runs == 0 && frame.isIntact)
  }
}

private func isolated(
  _ actor: Plain,
  _ held: Census.Citizen,
  _ ran: Census,
  _ frame: UnsafeMutablePointer<Frame>
) throws -> Int {
  // Sound because of the caller, above.
  nonisolated(unsafe) let frame = frame
  return try co_isolated(actor) { _ in
    held.use()
    ran.change()
    return frame.pointee.run()
  }
}
