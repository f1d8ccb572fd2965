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
//   2  F    reads what each of them waits for, and finds the stuck ones (DeadlockGraph)
//   3  V    takes each job of the circles, and of what they wait for, by its hold (JobRecord.swift): that shows, by a
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

// MARK: - Circles of a graph

/// Finds the strongly connected components of a graph (Tarjan's algorithm), without recursion: a chain of waits may be
/// as long as there are coroutines.
///
/// A component of one node counts only if the node is a target of itself.
struct CircleSearch {
  private struct Visit {
    let node: Int
    let targets: [Int]
    var next = 0
  }

  private var number: [Int]
  private var lowest: [Int]
  private var isOnStack: [Bool]
  private var stack: [Int] = []
  private var count = 0
  private(set) var circles: [[Int]] = []

  init(count: Int) {
    number = Array(repeating: -1, count: count)
    lowest = number
    isOnStack = Array(repeating: false, count: count)
  }

  /// Visits what can be reached from `start`.
  mutating func visit(_ start: Int, _ targets: (Int) -> [Int]) {
    guard number[start] < 0 else { return }
    var visits = [enter(start, targets)]
    while var visit = visits.popLast() {
      if visit.next < visit.targets.count {
        let target = visit.targets[visit.next]
        visit.next += 1
        visits.append(visit)
        if number[target] < 0 {
          visits.append(enter(target, targets))
        } else if isOnStack[target] {
          lowest[visit.node] = min(lowest[visit.node], number[target])
        }
        continue
      }
      if lowest[visit.node] == number[visit.node] { leave(visit.node, targets) }
      if let outer = visits.last { lowest[outer.node] = min(lowest[outer.node], lowest[visit.node]) }
    }
  }

  private mutating func enter(_ node: Int, _ targets: (Int) -> [Int]) -> Visit {
    number[node] = count
    lowest[node] = count
    count += 1
    stack.append(node)
    isOnStack[node] = true
    return Visit(node: node, targets: targets(node))
  }

  /// Takes the component of its first node from the stack.
  private mutating func leave(_ first: Int, _ targets: (Int) -> [Int]) {
    var members: Set<Int> = []
    while let node = stack.popLast() {
      isOnStack[node] = false
      members.insert(node)
      if node == first { break }
    }
    if members.count > 1 || targets(first).contains(first) { circles.append(inOrder(members, targets)) }
  }

  /// The members from the lowest one on, each followed by one that it waits for, as far as the circle is simple.
  private func inOrder(_ members: Set<Int>, _ targets: (Int) -> [Int]) -> [Int] {
    var (order, seen): ([Int], Set<Int>) = ([], [])
    for start in members.sorted() {
      var next: Int? = start
      while let node = next, seen.insert(node).inserted {
        order.append(node)
        next = targets(node).first { members.contains($0) && !seen.contains($0) }
      }
    }
    return order
  }
}

// MARK: - Which coroutines can never go on

/// Which of some waiting coroutines can never go on, given what each of them waits for.
///
/// A node is a coroutine. It waits for
///
///   any        one of some nodes has to act: the owner of a lock, an awaited job, or one of several in a select
///   children   all nodes whose `parent` it is have to end: the end of a scope
///
/// A node is stuck if it waits and will never go on. STUCK is the greatest set with these properties:
///
///   any        all of the node's targets are stuck
///   children   at least one of the node's children is stuck
///
/// A node that waits for something else, or for a coroutine that does not wait, is not stuck. The caller releases it.
/// Each release may release others: the nodes of which it is a target, and the parent of which it was the last stuck
/// child. So the set is found by releases alone, in time linear in the number of edges.
///
/// Why the greatest set. Whatever is released can go on if every coroutine that it depends on does its part. What is
/// left waits only for what is left.
///
/// A circle is a strongly connected component of the stuck nodes. A stuck node in no circle waits for one.
struct DeadlockGraph {
  enum Wait {
    case any([Int])
    case children
  }

  private let waits: [Wait]
  private(set) var isStuck: [Bool]
  /// Node `t` is a target of the nodes `waiters[firstWaiter[t]..<firstWaiter[t + 1]]`.
  private var firstWaiter: [Int]
  private var waiters: [Int]
  private var parents: [Int] = []
  private var stuckChildren: [Int: Int] = [:]

  /// Creates the graph without parents: until `setParents`, the waits for children count as stuck.
  init(_ waits: [Wait]) {
    self.waits = waits
    isStuck = Array(repeating: true, count: waits.count)
    firstWaiter = Array(repeating: 0, count: waits.count + 1)
    for case .any(let targets) in waits { for target in targets { firstWaiter[target + 1] += 1 } }
    for node in waits.indices { firstWaiter[node + 1] += firstWaiter[node] }
    waiters = Array(repeating: 0, count: firstWaiter[waits.count])
    var next = firstWaiter
    for (node, wait) in waits.enumerated() {
      guard case .any(let targets) = wait else { continue }
      for target in targets {
        waiters[next[target]] = node
        next[target] += 1
      }
    }
  }

  var hasStuck: Bool { isStuck.contains(true) }

  /// Sets the node that waits for each node's scope, -1 if there is none.
  mutating func setParents(_ parents: [Int]) {
    self.parents = parents
    for (node, parent) in parents.enumerated() where parent >= 0 && isStuck[node] {
      stuckChildren[parent, default: 0] += 1
    }
    for (node, wait) in waits.enumerated() {
      if case .children = wait, isStuck[node], stuckChildren[node] == nil { release(node) }
    }
  }

  /// Notes that a node can go on, and releases what that releases.
  mutating func release(_ node: Int) {
    guard isStuck[node] else { return }
    isStuck[node] = false
    var open = [node]
    while let node = open.popLast() {
      for waiter in waiters[firstWaiter[node]..<firstWaiter[node + 1]] where isStuck[waiter] {
        isStuck[waiter] = false
        open.append(waiter)
      }
      guard !parents.isEmpty, case let parent = parents[node], parent >= 0, let count = stuckChildren[parent] else {
        continue
      }
      stuckChildren[parent] = count - 1
      if count == 1, isStuck[parent] {
        isStuck[parent] = false
        open.append(parent)
      }
    }
  }

  /// The stuck nodes that a stuck node waits for; all are stuck, so any of them is a reason.
  private func targets(of node: Int, _ children: [Int: [Int]]) -> [Int] {
    switch waits[node] {
    case .any(let targets): targets
    case .children: children[node] ?? []
    }
  }

  private var children: [Int: [Int]] {
    var children: [Int: [Int]] = [:]
    for (node, parent) in parents.enumerated() where parent >= 0 && isStuck[node] {
      children[parent, default: []].append(node)
    }
    return children
  }

  /// The circles, each from its lowest node on, in the order of the waits.
  func circles() -> [[Int]] {
    var search = CircleSearch(count: waits.count)
    let children = children
    for node in waits.indices where isStuck[node] { search.visit(node) { targets(of: $0, children) } }
    return search.circles.sorted { $0[0] < $1[0] }
  }

  /// The nodes of some circles, and those that they wait for, directly or through others.
  func support(of circles: [[Int]]) -> [Int] {
    let children = children
    var (seen, open) = (Set<Int>(), circles.flatMap(\.self))
    while let node = open.popLast() {
      if seen.insert(node).inserted { open += targets(of: node, children) }
    }
    return seen.sorted()
  }
}

// MARK: - No timer ends the wait

// Phase 3 of the search for deadlocks: whether a job is still in its wait, and no timer can end that.
//
// A deadline ends the waits inside it unless a shield hides it, and so the waits of the children of each scope inside
// it. So the frames of three kinds of jobs are read, each from the innermost one outwards, up to a shield:
//
//   the job itself
//   the joiner of the scope that it runs in, from the scope's frame on; all frames once the scope's frame is left
//   the joiner of the scope that this one runs in, and so on
//
// Frames lie on the job's stack. They may be read by the holder of a parked job (JobRecord.swift), and by the job
// itself: the search may be made by a coroutine in whose scope the circle is. The frames of a job that runs elsewhere
// cannot be read; then a deadline is assumed. The scope of a held job is alive, because the job has not ended.

struct DeadlockProof {
  /// What surrounds a wait.
  fileprivate enum Surroundings {
    /// A deadline that will pass, or a cancellation that is on its way.
    case ends
    /// A shield, or the end of the chain with no scope around the job.
    case lasts
    /// The job runs in a scope of this one, outside of which deadlines count as well.
    case scope(any EnclosingScope)
  }

  private struct Key: Hashable {
    let joiner: ObjectIdentifier
    let scope: ObjectIdentifier
  }

  /// Whether the chain outside of a scope has no end, as far as it is known.
  private var known: [Key: Bool] = [:]

  /// Whether the job is in its wait, which no timer, and no cancellation that has been requested, will end.
  mutating func holds(for single: DeadlockSearch.Waiting) -> Bool {
    guard single.isOwedByActor else { return false }
    guard let surroundings = held(single.job, since: single.word, { $0.surroundings(from: $0.pointee.frames) }) else {
      return false
    }
    return lasts(surroundings)
  }

  private mutating func lasts(_ first: Surroundings) -> Bool {
    var passed: [Key] = []
    var result: Bool?
    var next = first
    while result == nil {
      switch next {
      case .ends: result = false
      case .lasts: result = true
      case .scope(let scope):
        // A scope that has ended meanwhile: the job has moved.
        guard !scope.isAboutToCancel, let joiner = scope.joiner else {
          result = false
          break
        }
        let key = Key(joiner: ObjectIdentifier(joiner), scope: ObjectIdentifier(scope))
        if let known = known[key] {
          result = known
          break
        }
        passed.append(key)
        let address = UnsafeRawPointer(Unmanaged.passUnretained(scope as AnyObject).toOpaque())
        next = held(joiner, since: nil) { $0.surroundings(from: $0.frames(outside: address)) } ?? .ends
      }
    }
    for key in passed { known[key] = result }
    return result ?? false
  }

  /// Calls `body` while the job cannot be resumed, or is the one that calls; nil if that is not possible.
  private func held(
    _ job: AnyJob,
    since word: UInt64?,
    _ body: (JobRef) -> Surroundings
  ) -> Surroundings? {
    let record = job.record
    if Carrier.current?.pointee.job == record { return word == nil ? body(record) : nil }
    guard let epoch = record.hold.tryTake() else { return nil }
    defer { record.hold.release() }
    return word == nil || epoch.word == word ? body(record) : nil
  }
}

extension DeadlockSearch.Waiting {
  /// Whether an ask has not been delegated since phase 2; true for other waits.
  fileprivate var isOwedByActor: Bool {
    guard kind == .answer else { return true }
    let actor = Inspection.source(of: job.record, word, at: source) as? any OwnedSource
    return actor?.owners(awaitedBy: job.record) != nil
  }
}

// Called where `cancellation` may be called.
extension UnsafeMutablePointer where Pointee == JobRecord {
  /// What surrounds the job from `frame` outwards.
  fileprivate func surroundings(from first: UnsafeMutablePointer<CancelFrame>?) -> DeadlockProof.Surroundings {
    if isCancellationVisible { return .ends }
    var frame = first
    while let current = frame {
      switch current.pointee.kind {
      case .shield: return .lasts
      case .deadline: if current.pointee.mayPass { return .ends }
      case .scope, .bound: break
      }
      frame = current.pointee.outer
    }
    return handle._withUnsafeGuaranteedRef { $0.enclosingAny }.map { .scope($0) } ?? .lasts
  }

  /// The frames outside of that of a scope, or all of them if its frame has been left.
  fileprivate func frames(outside scope: UnsafeRawPointer) -> UnsafeMutablePointer<CancelFrame>? {
    var frame = pointee.frames
    while let current = frame {
      frame = current.pointee.outer
      if current.pointee.owner?.object == scope { return frame }
    }
    return pointee.frames
  }
}

extension CancelFrame {
  /// Whether it is a deadline that some clock reaches.
  fileprivate var mayPass: Bool { timer.map { $0.node.pointee.deadline != Duration.never } ?? true }
}
