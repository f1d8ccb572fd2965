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
