import Coroutine

/// One choice that a world asks its strategy to make, among `count` possible answers.
///
/// The answer 0 is the one that a world without a strategy takes.
struct Question {
  enum Kind: UInt8 { case next, selectCase, fault, split, late }
  var kind: Kind
  var count: Int
  /// For `next`: the coroutines that can run.
  var candidates = UnsafeBufferPointer<Candidate>(start: nil, count: 0)
  /// For `next`: whether candidate 0 is the running coroutine.
  var continues = false
  /// For `next`: the coroutine that ran last.
  var previous: UInt64 = 0
  /// For `fault` and `split`: its name.
  var name: StaticString = ""

  /// Whether the answer is a preemption.
  ///
  /// It is one if it interrupts a coroutine that can continue, or continues one that has yielded.
  func isPreemption(_ answer: Int) -> Bool {
    if kind == .late { return answer != 0 }
    guard kind == .next else { return false }
    return continues ? answer != 0 : candidates[answer].id == previous
  }

  /// The question and its answer in words, for a report.
  func text(_ answer: Int) -> String {
    switch kind {
    case .next: "\(candidates[answer].title) next, of \(count) that could run"
    case .selectCase: "case \(answer) of \(count)"
    case .fault: "the fault \"\(name)\""
    case .late: answer == 0 ? "no time passes" : "time passes, although something can run"
    case .split: answer == 0 ? "a write in one piece" : "a write in pieces"
    }
  }

  /// The question's `hash`, which `RunPolicy` computes once for all that compare it.
  var fingerprint: UInt64 = 0

  /// A hash of the question; equal questions have equal hashes.
  var hash: UInt64 {
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
  /// The candidate that runs next.
  var id: UInt64 = 0
  /// A hash of the questions and answers up to here; zero in a token.
  var mark: UInt32 = 0

  /// The choice in words; `candidates` are those of another run, by which the coroutine is named.
  func text(among candidates: UnsafeBufferPointer<Candidate>) -> String {
    switch kind {
    case .next:
      let known = id < Candidate.firstTask ? "coroutine #\(id)" : Candidate.isTask(id) ? "a Task" : "a handler"
      let name = candidates.first { $0.id == id }?.title ?? known
      return "\(name) next, of \(count)"
    case .selectCase: return "case \(chosen) of \(count)"
    case .fault: return "a fault"
    case .late: return chosen == 0 ? "no time passed" : "time passed"
    case .split: return chosen == 0 ? "a write in one piece" : "a write in pieces"
    }
  }
}

/// Answers the questions of one run or of several runs; this class chooses 0 each time.
class Chooser {
  /// Called before each run, with the seed of its world.
  func begin(_ world: UInt64) {}
  /// Returns the answer, an index below `question.count`.
  func answer(_ question: Question) -> Int { 0 }

  /// Whether the world records which objects each step touches, and calls `stepFinished`.
  var tracksSharing: Bool { false }
  /// Called after each step if `tracksSharing` is true; see ``WorldPolicy``.
  func stepFinished(_ id: UInt64, isUniversal: Bool, tasks: [UInt64], _ isDependent: (UInt64) -> Bool) {}
}
