import Coroutine

// Searches every schedule with a bounded number of preemptions, depth first. A run repeats the answers of the path, and
// answers 0, the order without preemptions, to every question after them. Then the last question that has another
// answer gets that answer, and the next run begins.
//
//   path     the questions of the last run, with their answers; the questions after the last changed one are new
//   advance  removes the questions at the end that have no other answer within the bound, and changes the last one left
//
// The program must ask the same questions after the same answers. Each question's fingerprint is compared with the one
// of the previous run. The first difference is reported (Exploration.NondeterminismError).
//
// Sleep sets (Godefroid, 1996) are used if the coroutines share only what they wait for. When all schedules in which
// coroutine c runs next have been tried, c sleeps in the other branches of that question. Running c there would repeat
// a known schedule until a step that depends on c's next step has been taken, because independent steps may be
// exchanged. A run in which only sleeping coroutines can continue is redundant: it ends in order, and is not counted.
//
// With a bound on preemptions that argument has a gap: the exchanged schedule may need more preemptions than the bound
// allows. So c sleeps only if the bound has excluded none of the schedules in which c ran.
//
// One thread uses a search. Exclusivity is not checked, because a search of a million schedules answers ten million
// questions.
final class ExhaustiveSearch: Chooser {
  private struct Sleeper {
    var id: UInt64
    /// Whether its next step depends on every other step.
    var isUniversal: Bool
    /// The Tasks that its next step touches.
    var tasks: [UInt64]
  }

  private struct Node {
    var chosen: Int
    var count: Int
    var fingerprint: UInt64
    /// Whether answer 0 continues the running coroutine; then every other answer is a preemption.
    var continues = false
    /// Whether the answer 1 is a write that is read in pieces: it counts as a preemption, or there would be twice the
    /// schedules for each write.
    var isSplit = false
    /// The answer that runs a coroutine which has yielded; -1 if there is none.
    var yielded = -1
    /// The number of preemptions before this question.
    var spent = 0
    /// The numbers of the coroutines, if the search uses sleep sets; empty otherwise.
    var ids: [UInt64] = []
    var sleepers: [Sleeper] = []
    /// Whether the step that followed the answer depends on every other step.
    var isUniversal = false
    /// The Tasks that this step touches.
    var tasks: [UInt64] = []
    /// Whether the bound has excluded schedules after the current answer.
    var isCut = false
    /// Whether the bound has excluded schedules after any answer.
    var wasCut = false

    func cost(_ answer: Int) -> Int { (continues || isSplit ? answer != 0 : answer == yielded) ? 1 : 0 }
    func isAsleep(_ answer: Int) -> Bool { !ids.isEmpty && sleepers.contains { $0.id == ids[answer] } }

    /// Chooses the first answer, from `answer` on, that is within the bound and not asleep; returns false if none is.
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
  @exclusivity(unchecked) private var path: [Node] = []
  @exclusivity(unchecked) private var position = 0
  @exclusivity(unchecked) private var asleep: [Sleeper] = []
  /// The position of the question whose answer began the current step.
  @exclusivity(unchecked) private var asked: Int?
  /// The first question that differs from the one of the previous run; nil if there is none.
  @exclusivity(unchecked) private(set) var firstDifference: Exploration.NondeterminismError?
  /// Whether the bound has excluded a schedule.
  @exclusivity(unchecked) private(set) var hasCut = false
  /// Whether the run repeats one that has been tried.
  @exclusivity(unchecked) private(set) var isRedundant = false

  init(preemptions: Int, sharing: Exploration.Sharing = .memory) {
    bound = preemptions
    findsSleepers = !sharing.isOfMemory
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
      // Field by field: a copy of the node would retain its arrays.
      if path[position].fingerprint == question.fingerprint {
        if findsSleepers, question.kind == .next { asleep = path[position].sleepers }
        return timePasses(question, path[position].chosen)
      }
      if firstDifference == nil {
        let other = "answer \(path[position].chosen) of \(path[position].count)"
        firstDifference = .init(
          step: position,
          difference: "\(question.text(0)), where the other run had \(other)"
        )
      }
      path.removeSubrange(position...)
    }
    var node = Node(chosen: 0, count: question.count, fingerprint: question.fingerprint)
    if let last = path.indices.last { node.spent = path[last].spent + path[last].cost(path[last].chosen) }
    node.isSplit = question.kind == .split
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
    node.continues = node.continues || question.kind == .late
    if isRedundant {
      node.count = 0
    } else if !node.choose(from: 0, bound) {
      isRedundant = true
      node.count = 0
    }
    if node.wasCut { hasCut = true }
    path.append(node)
    return timePasses(question, node.chosen)
  }

  /// Wakes all if the answer lets time pass, which is no step of any of them, and depends on each.
  private func timePasses(_ question: Question, _ answer: Int) -> Int {
    if question.kind == .late, answer != 0 { asleep = [] }
    return answer
  }

  override func stepFinished(_ id: UInt64, isUniversal: Bool, tasks: [UInt64], _ isDependent: (UInt64) -> Bool) {
    if let asked {
      path[asked].isUniversal = path[asked].isUniversal || isUniversal
      path[asked].tasks = tasks
    }
    asked = nil
    if asleep.isEmpty { return }
    // A sleeping coroutine ran because no other one could.
    if asleep.contains(where: { $0.id == id }) { isRedundant = true }
    asleep.removeAll { sleeper in
      sleeper.id == id || isUniversal || sleeper.isUniversal || sleeper.tasks.contains { tasks.contains($0) }
        || isDependent(sleeper.id)
    }
  }

  /// Prepares the next run; returns false if every schedule has been tried.
  func advance() -> Bool {
    if position < path.count {
      // The run has ended before the last question of the previous run.
      if firstDifference == nil {
        let difference = "the end of the run, where the other run had another choice"
        firstDifference = .init(step: position, difference: difference)
      }
      return false
    }
    while var node = path.popLast() {
      if node.count > 0, !node.ids.isEmpty, !node.isCut {
        node.sleepers.append(Sleeper(id: node.ids[node.chosen], isUniversal: node.isUniversal, tasks: node.tasks))
      }
      node.wasCut = node.wasCut || node.isCut
      node.isCut = false
      node.isUniversal = false
      node.tasks = []
      let hasNext = node.choose(from: node.chosen + 1, bound)
      if node.wasCut { hasCut = true }
      if hasNext {
        path.append(node)
        return true
      }
      if node.wasCut, !path.isEmpty { path[path.count - 1].isCut = true }
    }
    return false
  }
}
