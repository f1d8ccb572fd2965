import Coroutine

/// Passes the choices of one run to a chooser, and records them together with the steps.
///
/// Every choice goes through `decide`, so two runs of one program differ only in what `decide` returns. One thread uses
/// a policy; exclusivity is not checked, because `decide` runs once or twice in each step of a search.
final class RunPolicy: WorldPolicy {
  let chooser: Chooser
  /// Whether the body is async code.
  var isAsync = false
  @exclusivity(unchecked) private(set) var choices: [Choice] = []
  @exclusivity(unchecked) private(set) var fingerprint: UInt64 = 0
  @exclusivity(unchecked) private(set) var preemptions = 0
  /// The number of writes that are read in pieces.
  @exclusivity(unchecked) private(set) var splits = 0
  @exclusivity(unchecked) private(set) var steps: [SimulatedStep] = []
  /// The choices of a run that this one should repeat; nil if there is none.
  private let expected: [Choice]?
  /// The first choice that differs from the expected one.
  @exclusivity(unchecked) private(set) var difference: String?

  init(_ chooser: Chooser, expecting expected: [Choice]? = nil) {
    self.chooser = chooser
    self.expected = expected
    // A short run, as those of a search, then allocates once.
    choices.reserveCapacity(32)
  }

  private func decide(_ asked: Question) -> Int {
    var question = asked
    question.fingerprint = asked.hash
    let answer = chooser.answer(question)
    fingerprint = (fingerprint &+ question.fingerprint &+ UInt64(answer)) &* 0x5851_F42D_4C95_7F2D
    choices.append(
      Choice(
        chosen: UInt16(answer),
        count: UInt16(min(question.count, 65_535)),
        kind: question.kind,
        id: question.kind == .next ? question.candidates[answer].id : 0,
        // The upper half, because the multiplication carries every difference there.
        mark: UInt32(truncatingIfNeeded: fingerprint &>> 32)
      )
    )
    if question.isPreemption(answer) { preemptions += 1 }
    if question.kind == .split { splits += answer }
    if let expected, difference == nil {
      let last = choices.count - 1
      if last >= expected.count || expected[last].mark != choices[last].mark {
        let other = last < expected.count ? expected[last].text(among: question.candidates) : "its end"
        difference = "\(question.text(answer)), where the other run had \(other)"
      }
    }
    return answer
  }

  func chooseNext(_ candidates: UnsafeBufferPointer<Candidate>, continues: Bool, previous: UInt64) -> Int {
    decide(
      Question(
        kind: .next,
        count: candidates.count,
        candidates: candidates,
        continues: continues,
        previous: previous
      )
    )
  }

  func choose(_ count: Int) -> Int { decide(Question(kind: .selectCase, count: count)) }

  func chooseFault(_ name: StaticString) -> Bool { decide(Question(kind: .fault, count: 2, name: name)) == 1 }

  func chooseSplit() -> Bool { decide(Question(kind: .split, count: 2, name: "split")) == 1 }

  func chooseLate() -> Bool { decide(Question(kind: .late, count: 2, name: "late timer")) == 1 }

  func stepFinished(_ id: UInt64, isUniversal: Bool, tasks: [UInt64], _ isDependent: (UInt64) -> Bool) {
    chooser.stepFinished(id, isUniversal: isUniversal, tasks: tasks, isDependent)
  }

  func stepEnded(_ step: SimulatedStep) {
    // The description shows only the last steps.
    if steps.count == 20_000 { steps.removeFirst(10_000) }
    steps.append(step)
  }

  func deadlock(_ dump: String) -> any Error {
    World.DeadlockError(dump: dump, waiting: isAsync ? "Task" : "coroutine")
  }
  func leftRunning(_ dump: String) -> any Error { World.LeftRunningError(dump: dump) }
  func realWait(_ wait: String) -> any Error { World.RealWaitError(wait: wait) }
  func unhandled(_ error: CoroutineRuntime.UnhandledError) -> any Error { World.UnhandledError(unhandled: error) }
  func overLimit(_ limit: UInt64?, _ dump: String) -> any Error {
    if limit == .max { return World.TimeLimitError(limit: nil, dump: dump, timePassed: true) }
    return World.TimeLimitError(limit: limit.map { .nanoseconds(Int64(clamping: $0)) }, dump: dump)
  }
}
