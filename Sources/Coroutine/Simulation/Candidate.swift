internal import CCoroutine

/// One flow of control that may take the next step of a world.
///
/// It is a coroutine, a handler, a Swift job, or a body of co_blocking.
package struct Candidate {
  /// The number of the coroutine in its world, in the order of the launches.
  ///
  /// Candidates that are no coroutines have numbers from `noJob` on.
  package let id: UInt64
  /// The inbox's encoding of the candidate (`Inbox.encode`).
  let word: UInt
  // The world holds its executors.
  unowned(unsafe) let executor: SimulatedExecutor
  /// Whether the executor lists no other candidate before this one has taken a step.
  var isHead: Bool

  package static var noJob: UInt64 { 1 << 63 }

  init(_ message: Inbox.Message, id: UInt64, _ executor: SimulatedExecutor, isHead: Bool) {
    word = Inbox.encode(message)
    self.id = id
    self.executor = executor
    self.isHead = isHead
  }

  var job: JobRef? {
    if case .job(let job) = Inbox.decode(word) { return job }
    return nil
  }

  /// The arrival of a coroutine, with the reference that its queue has; nil for other candidates.
  var arrival: Unmanaged<Arrival>? { Self.arrival(Inbox.decode(word)) }

  static func arrival(_ message: Inbox.Message) -> Unmanaged<Arrival>? {
    if case .work(let item) = message { Arrival.owned(by: item) } else { nil }
  }

  /// The number of the coroutine that a message is about; nil for a Swift job or a handler.
  static func coroutine(_ message: Inbox.Message) -> UInt64? {
    if case .job(let job) = message { return job.pointee.label.id }
    return arrival(message)?._withUnsafeGuaranteedRef { $0.id }
  }

  var isSwiftJob: Bool {
    if case .swiftJob = Inbox.decode(word) { true } else { false }
  }

  /// Runs a candidate that is no coroutine, as a drain of its executor would.
  func run() {
    switch Inbox.decode(word) {
    case .work(let item): item.run()
    case .swiftJob(let job): executor.scheduler.perform(job)
    case .job, .interrupt: misuse("a coroutine is resumed, not run")
    }
  }
}

/// The candidates in the order in which they became ready.
///
/// Removing takes constant time. The policy chooses among the first `window` candidates only, and the candidates in
/// front of the removed one move up by one.
struct CandidateList {
  private var items: [Candidate] = []
  private var first = 0

  static var window: Int { 256 }

  init() { items.reserveCapacity(8) }

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

  /// Removes the first arrival whose coroutine does not come any more, if there is one.
  mutating func removeCancelledArrival() -> Candidate? {
    let index = items[first...].firstIndex { $0.arrival?._withUnsafeGuaranteedRef { $0.isCancelled } ?? false }
    return index.map { remove(at: $0 - first) }
  }

  /// Calls `body` with the first `window` candidates.
  func withWindow<R>(_ body: (UnsafeBufferPointer<Candidate>) -> R) -> R {
    items.withUnsafeBufferPointer { items in
      body(UnsafeBufferPointer(rebasing: items[first..<min(items.count, first + Self.window)]))
    }
  }
}

extension SimulatedStep {
  init(_ candidate: Candidate, now: UInt64) {
    let kind = candidate.isSwiftJob ? "part of a Task" : "handler"
    self.init(id: candidate.id, name: nil, launchSite: "", end: kind, now: now)
  }

  init(_ job: AnyJob, isInterrupted: Bool, now: UInt64) {
    let value = SnapshotReader.value(of: InspectedJob(job))
    let end = job.completion.known.isSettled ? "ended" : isInterrupted ? "interrupted" : value.stateText
    self.init(id: value.id, name: value.name, launchSite: value.launchSite, end: end, now: now)
  }
}
