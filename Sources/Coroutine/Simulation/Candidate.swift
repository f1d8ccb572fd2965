/// A coroutine that could take the next step of a world, or a handler, or a body of co_blocking.
package struct Candidate {
  /// The number of the coroutine in its world, in the order of the launches; others have numbers from `noJob` on.
  package let id: UInt64
  /// As in an inbox.
  let word: UInt
  // The world holds its lanes.
  unowned(unsafe) let lane: WorldLane
  /// Whether the other members of its lane are not candidates before it has taken a step.
  var isHead: Bool

  package static var noJob: UInt64 { 1 << 63 }

  init(_ message: Inbox.Message, id: UInt64, _ lane: WorldLane, isHead: Bool) {
    word = Inbox.encode(message)
    self.id = id
    self.lane = lane
    self.isHead = isHead
  }

  var job: JobRef? {
    if case .job(let job) = Inbox.decode(word) { return job }
    return nil
  }

  var item: UnsafeMutablePointer<WorkItem> {
    guard case .work(let item) = Inbox.decode(word) else { misuse("a job is no work item") }
    return item
  }
}

/// The candidates in the order in which they became ready.
///
/// Removing takes constant time: only the first `window` candidates are offered, and those before the removed one move
/// up.
struct CandidateList {
  private var items: [Candidate] = []
  private var first = 0

  static var window: Int { 256 }

  var count: Int { items.count - first }
  var isEmpty: Bool { items.count == first }
  var last: Candidate? { isEmpty ? nil : items[items.count - 1] }

  mutating func append(_ candidate: Candidate) { items.append(candidate) }

  mutating func prepend(_ candidate: Candidate) {
    if first > 0 {
      first -= 1
      items[first] = candidate
    } else {
      items.insert(candidate, at: 0)
    }
  }

  mutating func remove(at index: Int) -> Candidate {
    let candidate = items[first + index]
    var position = first + index
    while position > first {
      items[position] = items[position - 1]
      position -= 1
    }
    first += 1
    if first == items.count {
      items.removeAll(keepingCapacity: true)
      first = 0
    } else if first > 1024, first > items.count / 2 {
      items.removeFirst(first)
      first = 0
    }
    return candidate
  }

  /// Calls `body` with the candidates to choose from.
  func withWindow<R>(_ body: (UnsafeBufferPointer<Candidate>) -> R) -> R {
    items.withUnsafeBufferPointer { items in
      body(UnsafeBufferPointer(rebasing: items[first..<min(items.count, first + Self.window)]))
    }
  }
}

extension SimulatedStep {
  init(_ candidate: Candidate, now: UInt64) {
    self.init(id: candidate.id, name: nil, launchSite: "", end: "handler", now: now)
  }

  init(_ job: AnyJob, now: UInt64) {
    let state = job.completion.isSettled ? "ended" : DumpedJob(job, now: 0).shortState
    let launchSite = job.record.label.pointee.launchSite.description
    self.init(id: job.id, name: job.name, launchSite: launchSite, end: state, now: now)
  }
}
