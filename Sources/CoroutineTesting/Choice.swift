import Coroutine

/// One question of a world, which has `count` possible answers.
///
/// The answer 0 is what happens without any strategy.
struct Question {
  enum Kind: UInt8 { case next, selectCase, fault }
  var kind: Kind
  var count: Int
  /// For `next`: the coroutines that can run.
  var candidates = UnsafeBufferPointer<Candidate>(start: nil, count: 0)
  /// For `next`: whether candidate 0 is the running coroutine.
  var continues = false
  /// For `next`: the coroutine that ran last.
  var previous: UInt64 = 0
  /// For `fault`: its name.
  var name: StaticString = ""

  /// Whether the answer takes the processor from a coroutine that can go on, or gives it back to one that has yielded.
  func isPreemption(_ answer: Int) -> Bool {
    guard kind == .next else { return false }
    return continues ? answer != 0 : candidates[answer].id == previous
  }

  /// A number that is the same for the same question.
  var fingerprint: UInt64 {
    var hash = UInt64(kind.rawValue) &+ UInt64(count) &<< 8 &+ (continues ? 1 << 40 : 0)
    for candidate in candidates { hash = (hash ^ candidate.id) &* 0x9E37_79B9_7F4A_7C15 }
    return hash ^ (hash >> 29)
  }
}

/// One answer of a run.
struct Choice {
  var chosen: UInt16
  var count: UInt16
  var kind: Question.Kind
}

/// Answers the questions of one run, or of many.
class Chooser {
  /// Called before each run.
  func begin(_ world: UInt64) {}
  func answer(_ question: Question) -> Int { 0 }

  /// Whether the world says what steps touch.
  var tracksSharing: Bool { false }
  /// Called after each step if so; see ``WorldPolicy``.
  func stepFinished(_ id: UInt64, isUniversal: Bool, _ isDependent: (UInt64) -> Bool) {}
}

/// The choices of a run, recorded, and what it printed.
///
/// Everything that may differ between two runs goes through `decide`.
final class RunPolicy: WorldPolicy {
  let chooser: Chooser
  private(set) var choices: [Choice] = []
  private(set) var fingerprint: UInt64 = 0
  private(set) var preemptions = 0
  private(set) var steps: [SimulatedStep] = []

  init(_ chooser: Chooser) { self.chooser = chooser }

  private func decide(_ question: Question) -> Int {
    let answer = chooser.answer(question)
    fingerprint = (fingerprint &+ question.fingerprint &+ UInt64(answer)) &* 0x5851_F42D_4C95_7F2D
    choices.append(Choice(chosen: UInt16(answer), count: UInt16(min(question.count, 65_535)), kind: question.kind))
    if question.isPreemption(answer) { preemptions += 1 }
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

  func stepFinished(_ id: UInt64, isUniversal: Bool, _ isDependent: (UInt64) -> Bool) {
    chooser.stepFinished(id, isUniversal: isUniversal, isDependent)
  }

  func stepEnded(_ step: SimulatedStep) { steps.append(step) }

  func deadlock(_ dump: String) -> any Error { Deadlock(dump: dump) }
  func leftRunning(_ dump: String) -> any Error { LeftRunning(dump: dump) }
  func realWait(_ place: String) -> any Error { RealWait(place: place) }
}
