import Coroutine

// Every schedule with a bounded number of preemptions, depth first: a run repeats the answers of the path and answers
// 0, the order without preemptions, behind it; then the last question that has another answer gets it.
//
//   path     the questions of the last run, with the answers given; those behind the last changed one are new
//   advance  drops the questions that have no other answer within the bound, and changes the last that is left
//
// The program must ask the same questions after the same answers. Each question's fingerprint is compared with that of
// the run before: the first that differs is reported (Nondeterminism).
//
// Sleep sets (Godefroid, 1996), if the coroutines share only what they wait for. When all schedules in which coroutine
// c runs next have been tried, c sleeps in the other branches of that question: to run it there is pointless until a
// step that depends on its next step has been taken, because the two could be exchanged. A run in which only sleeping
// coroutines can continue is redundant: it is ended in order, and not counted.
//
// With a bound that argument has a gap: the exchanged schedule may need more preemptions than the bound allows. So c
// sleeps only if the bound has cut nothing from the schedules in which it ran.
final class ExhaustiveSearch: Chooser {
  private struct Sleeper {
    var id: UInt64
    /// Whether its next step depends on every other.
    var isUniversal: Bool
  }

  private struct Node {
    var chosen: Int
    var count: Int
    var fingerprint: UInt64
    /// Whether answer 0 alone is free (the running coroutine continues).
    var continues = false
    /// The answer that runs a coroutine which has yielded; -1 if there is none.
    var yielded = -1
    /// The preemptions before this question.
    var spent = 0
    /// The numbers of the coroutines, if there are sleepers to be found; empty otherwise.
    var ids: [UInt64] = []
    var sleepers: [Sleeper] = []
    /// Whether the step that followed the answer depends on every other.
    var isUniversal = false
    /// Whether the bound has cut schedules behind the present answer, and behind any.
    var isCut = false
    var wasCut = false

    func cost(_ answer: Int) -> Int { (continues ? answer != 0 : answer == yielded) ? 1 : 0 }
    func isAsleep(_ answer: Int) -> Bool { !ids.isEmpty && sleepers.contains { $0.id == ids[answer] } }

    /// Moves to the next answer, from `answer` on, that is within the bound and not asleep; false if there is none.
    mutating func choose(from answer: Int, _ bound: Int) -> Bool {
      for next in answer..<max(answer, count) {
        if isAsleep(next) { continue }
        if cost(next) > bound - spent {
          wasCut = true
          continue
        }
        chosen = next
        return true
      }
      return false
    }
  }

  private let bound: Int
  private let findsSleepers: Bool
  private var path: [Node] = []
  private var position = 0
  private var asleep: [Sleeper] = []
  /// The question whose answer the present step follows.
  private var asked: Int?
  private(set) var firstDifference: Int?
  /// Whether the run repeats one that has been tried.
  private(set) var isRedundant = false

  init(preemptions: Int, sharing: Sharing = .memory) {
    bound = preemptions
    findsSleepers = sharing == .waits
  }

  override var tracksSharing: Bool { findsSleepers }

  override func begin(_ world: UInt64) {
    position = 0
    asleep = []
    asked = nil
    isRedundant = false
  }

  override func answer(_ question: Question) -> Int {
    defer { position += 1 }
    if question.kind == .next { asked = position }
    if position < path.count {
      let node = path[position]
      if node.fingerprint == question.fingerprint {
        if question.kind == .next { asleep = node.sleepers }
        return node.chosen
      }
      if firstDifference == nil { firstDifference = position }
      path.removeSubrange(position...)
    }
    var node = Node(chosen: 0, count: question.count, fingerprint: question.fingerprint)
    node.spent = path.last.map { $0.spent + $0.cost($0.chosen) } ?? 0
    if question.kind == .next {
      node.continues = question.continues
      if !question.continues {
        node.yielded = question.candidates.firstIndex { $0.id == question.previous } ?? -1
      }
      if findsSleepers {
        node.ids = question.candidates.map(\.id)
        node.sleepers = asleep
      }
    }
    if isRedundant {
      node.count = 0
    } else if !node.choose(from: 0, bound) {
      isRedundant = true
      node.count = 0
    }
    path.append(node)
    return node.chosen
  }

  override func stepFinished(_ id: UInt64, isUniversal: Bool, _ isDependent: (UInt64) -> Bool) {
    if let asked { path[asked].isUniversal = path[asked].isUniversal || isUniversal }
    asked = nil
    if asleep.isEmpty { return }
    // It was the only one that could run.
    if asleep.contains(where: { $0.id == id }) { isRedundant = true }
    asleep.removeAll { $0.id == id || isUniversal || $0.isUniversal || isDependent($0.id) }
  }

  /// Prepares the next run; returns false if there is none.
  func advance() -> Bool {
    if position < path.count {
      // The run has ended before the last question of the run before.
      if firstDifference == nil { firstDifference = position }
      return false
    }
    while var node = path.popLast() {
      if node.count > 0, !node.ids.isEmpty, !node.isCut {
        node.sleepers.append(Sleeper(id: node.ids[node.chosen], isUniversal: node.isUniversal))
      }
      node.wasCut = node.wasCut || node.isCut
      node.isCut = false
      node.isUniversal = false
      if node.choose(from: node.chosen + 1, bound) {
        path.append(node)
        return true
      }
      if node.wasCut, !path.isEmpty { path[path.count - 1].isCut = true }
    }
    return false
  }
}
