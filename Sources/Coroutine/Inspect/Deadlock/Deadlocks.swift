import Synchronization

// The search for coroutines that wait for one another and can never go on.
//
// What counts. A circle is reported if each of its coroutines is in one of these waits, and all that could end the wait
// is in the circle, or is stuck in another one:
//
//   lock       of a FairMutex, of a FairReadWriteLock whose writer holds it, of a Once that runs: by its owner
//   job        a join or an await of a job: by the job
//   promise    one that a coroutine of the library's settles (`retry`, `all(of:concurrently:)`), or that copies a job
//              (`Job.uncancelled`): by that coroutine
//   answer     an ask that was not delegated: by the actor and the coroutines of its scope
//   children   the end of a scope: by all of its children
//   select     by any of its cases; a case that is none of the above, and a timeout, can end it
//
// A deadline (co_timeout) that the coroutine can see, its own or that of a coroutine in whose scope it runs, can end
// the wait, and so can the end of `Scope.stop(within:)`. A cancellation by hand, by the failure of a sibling, by a
// race, and a promise that is settled by hand, are not foreseen: they may come for every wait, and a deadlock is what
// they end.
//
// A search has three phases.
//
//   1  W    reads the `wait` word of every live job, and keeps the jobs that are WAITING in one of these waits
//   2  F    reads what each of them waits for, and finds the stuck ones (DeadlockGraph.swift)
//   3  V    takes each job of the circles, and of what they wait for, by its hold (JobHold.swift): that shows, by a
//           compare-and-swap, that its word is still the one of phase 1. While it is held it reads its frames for
//           deadlines. A job that has moved, that another thread holds, or that a timer can resume is released from the
//           graph. Repeated until nothing is released.
//
// Why no circle is false. Let D be the jobs that are left, and t the moment between phases 2 and 3. Words never repeat
// (Waiter.swift), so each job of D has been in one and the same wait from its reading in 1 to its reading in 3: over
// all of phase 2, and at t.
//  a. What phase 2 has read of the jobs of D is true at t. A lock's owner in D has written its number before its wait
//     began; only the owner clears it, and the owner waits. A job in D has not ended, because it waits. An ask is
//     delegated once and for ever, and phase 3 asks again. A select's cases, the frames of a job, and the scope that a
//     job runs in do not change while it waits. A scope's children in D have not ended.
//  b. At t each wait of D can be ended only by a cancellation, or by the jobs from (a), which are in D, and wait.
//  c. Consider the first job of D that is resumed after t. By (b) a job of D has acted before. That one waits. So there
//     is no first one, unless something is cancelled.
// Facts about jobs outside of D do not matter: a job outside of D counts as one that can go on.
//
// Why every circle is found. Its jobs wait, and keep their words. A search after the last one has begun to wait finds
// them in phase 1, and phase 3 fails only for the moment in which another thread inspects one of them, or a coroutine
// in whose scope they run does not wait, so that its deadlines cannot be read. The next search succeeds.
//
// Cost. Phase 1 loads two words of each live job, and retains those that count. Phase 2 takes about half a microsecond
// for each of those. Phase 3 holds a job for the time of a few loads, and only in circles and what they wait for: a job
// that is woken meanwhile is queued when it is released. No job is stopped, and nothing is always on.

enum Deadlocks {
  /// One wait of one coroutine: unique in the process, and never used again.
  struct WaitName: Hashable {
    let owner: UInt
    let word: UInt64
  }

  struct Circle {
    let members: [AnyJob]
    let waits: [WaitName]
  }

  /// Finds the circles among the coroutines of `only`; without that, of the process, or, in a simulated world, of that
  /// world.
  ///
  /// `known`: waits that were found in a circle before, and so are in one as long as they last: phase 3 leaves them
  /// out.
  static func find(of only: [Scheduler]? = nil, knowing known: Set<WaitName> = []) -> [Circle] {
    var search = DeadlockSearch()
    return search.circles(of: only, known)
  }
}

/// One search.
struct DeadlockSearch {
  /// A job in a wait that may be a part of a circle, as it was found in phase 1.
  struct Waiting {
    let job: AnyJob
    let word: UInt64
    let kind: WaitKind
    let source: UInt

    init?(_ job: AnyJob) {
      let record = job.record
      word = record.pointee.wait.load(ordering: .sequentiallyConsistent)
      guard word & 0xFF == 1, let kind = WaitKind(rawValue: record.pointee.waitKind.load(ordering: .relaxed)),
        kind.mayHaveOwner
      else { return nil }
      self.kind = kind
      source = record.pointee.waitSource.load(ordering: .acquiring)
      self.job = job
    }

    var name: Deadlocks.WaitName { .init(owner: job.record.ownerNumber, word: word) }
  }

  private var waiting: [Waiting] = []
  /// The nodes by the numbers under which the jobs own locks, and by the addresses of the jobs.
  private var nodes: [UInt: Int] = [:]
  private var nodesByJob: [UInt: Int] = [:]
  /// The owners of the locks that were read in this search, by their addresses: many may wait for one.
  private var owners: [UInt: [UInt]] = [:]

  mutating func circles(of only: [Scheduler]?, _ known: Set<Deadlocks.WaitName>) -> [Deadlocks.Circle] {
    waiting = LiveJobs.list(of: only, where: { $0.mayBeInCircle }).compactMap { Waiting($0) }
    guard !waiting.isEmpty else { return [] }
    nodes.reserveCapacity(waiting.count)
    nodesByJob.reserveCapacity(waiting.count)
    for (node, single) in waiting.enumerated() {
      nodes[single.job.record.ownerNumber] = node
      nodesByJob[address(of: single.job)] = node
    }
    var released: [Int] = []
    let waits: [DeadlockGraph.Wait] = waiting.indices.map { node in
      if let wait = wait(of: node) { return wait }
      released.append(node)
      return .any([])
    }
    var graph = DeadlockGraph(waits)
    for node in released { graph.release(node) }
    guard graph.hasStuck else { return [] }
    graph.setParents(parents(graph.isStuck))
    return verified(&graph, known)
  }

  // MARK: Phase 2

  /// What a job waits for; nil if something else can end the wait.
  private mutating func wait(of node: Int) -> DeadlockGraph.Wait? {
    let (job, number) = (waiting[node].job.record, waiting[node].source)
    switch waiting[node].kind {
    case .children: return .children
    case .job: return nodesByJob[number].map { .any([$0]) }
    case .promise: return wait(job, waiting[node].word, at: number &- UInt(objectHeader))
    case .lock:
      // All that wait at this address wait for the same object, those that phase 3 accepts: they hold it.
      if let owners = owners[number] { return wait(for: owners) }
      let found = ownedSource(job, waiting[node].word, at: number)?.owners(awaitedBy: job)
      if let found { owners[number] = found }
      return wait(for: found)
    case .answer: return wait(job, waiting[node].word, at: number)
    case .select: return select(waiting[node])
    default: return nil
    }
  }

  private func ownedSource(_ job: JobRef, _ word: UInt64, at address: UInt) -> (any OwnedSource)? {
    address == 0 ? nil : Inspection.source(of: job, word, at: address) as? any OwnedSource
  }

  private func wait(_ job: JobRef, _ word: UInt64, at address: UInt) -> DeadlockGraph.Wait? {
    wait(for: ownedSource(job, word, at: address)?.owners(awaitedBy: job))
  }

  private func wait(for owners: [UInt]?) -> DeadlockGraph.Wait? {
    guard let owners, !owners.isEmpty else { return nil }
    var targets: [Int] = []
    for owner in owners {
      guard let node = nodes[owner] else { return nil }
      targets.append(node)
    }
    return .any(targets)
  }

  private func select(_ single: Waiting) -> DeadlockGraph.Wait? {
    let job = single.job.record
    guard single.source != 0, let first = Inspection.source(of: job, single.word, at: single.source),
      let cases = Inspection.cases(of: job, single.word, in: first)
    else { return nil }
    var all: [UInt] = []
    for one in cases {
      guard one.timeout == nil, let owners = (one.source as? any OwnedSource)?.owners(awaitedBy: job) else {
        return nil
      }
      all += owners
    }
    return wait(for: all)
  }

  private func address(of job: AnyJob) -> UInt { UInt(bitPattern: Unmanaged.passUnretained(job).toOpaque()) }

  /// The nodes that wait for the scopes of the stuck ones.
  private func parents(_ isStuck: [Bool]) -> [Int] {
    waiting.indices.map { node in
      guard isStuck[node], let scope = waiting[node].job.enclosingAny, let joiner = scope.joiner,
        let parent = nodesByJob[address(of: joiner)], waiting[parent].kind == .children,
        waiting[parent].source == UInt(bitPattern: Unmanaged.passUnretained(scope as AnyObject).toOpaque())
      else { return -1 }
      return parent
    }
  }

  // MARK: Phase 3

  private func verified(_ graph: inout DeadlockGraph, _ known: Set<Deadlocks.WaitName>) -> [Deadlocks.Circle] {
    var proof = DeadlockProof()
    var isProved: Set<Int> = []
    while true {
      let circles = graph.circles()
      if circles.isEmpty { return [] }
      var isChanged = false
      for node in graph.support(of: circles) where !isProved.contains(node) && graph.isStuck[node] {
        let single = waiting[node]
        if known.contains(single.name) ? single.stillWaits : proof.holds(for: single) {
          isProved.insert(node)
        } else {
          graph.release(node)
          isChanged = true
        }
      }
      if isChanged { continue }
      return circles.map { circle in
        let first = circle.indices.min { waiting[circle[$0]].job.id < waiting[circle[$1]].job.id } ?? 0
        let inOrder = circle[first...] + circle[..<first]
        return Deadlocks.Circle(members: inOrder.map { waiting[$0].job }, waits: inOrder.map { waiting[$0].name })
      }.sorted { $0.members[0].id < $1.members[0].id }
    }
  }
}

extension DeadlockSearch.Waiting {
  /// Whether the job is still in the wait of phase 1.
  var stillWaits: Bool { job.record.pointee.wait.load(ordering: .sequentiallyConsistent) == word }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether a live job seems to be in a wait that a circle may contain.
  fileprivate var mayBeInCircle: Bool {
    seemsWaiting && WaitKind(rawValue: pointee.waitKind.load(ordering: .relaxed))?.mayHaveOwner ?? false
  }
}

extension WaitKind {
  /// Whether only known coroutines can end some waits of this kind.
  fileprivate var mayHaveOwner: Bool {
    switch self {
    case .lock, .job, .promise, .children, .answer, .select: true
    default: false
    }
  }
}
