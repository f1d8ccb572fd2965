import Testing

@testable import Coroutine

/// The graph of a search, against its definition.
@Suite("The graph of waits", .timeLimit(.minutes(10)))
struct DeadlockGraphTests {
  private typealias Wait = DeadlockGraph.Wait

  /// The stuck nodes by the definition: repeats its two rules until nothing changes.
  private static func stuck(_ waits: [Wait], _ parents: [Int], _ released: Set<Int>) -> [Bool] {
    var isStuck = waits.indices.map { !released.contains($0) }
    while true {
      let before = isStuck
      for node in waits.indices where isStuck[node] {
        isStuck[node] =
          switch waits[node] {
          case .any(let targets): targets.allSatisfy { before[$0] }
          case .children: waits.indices.contains { parents[$0] == node && before[$0] }
          }
      }
      if before == isStuck { return isStuck }
    }
  }

  /// Whether `from` leads to `to` over stuck nodes.
  private static func leads(_ from: Int, to: Int, _ waits: [Wait], _ parents: [Int], _ isStuck: [Bool]) -> Bool {
    var (seen, open) = (Set<Int>(), [from])
    while let node = open.popLast() {
      let targets: [Int] =
        switch waits[node] {
        case .any(let targets): targets
        case .children: waits.indices.filter { parents[$0] == node && isStuck[$0] }
        }
      for target in targets where isStuck[target] {
        if target == to { return true }
        if seen.insert(target).inserted { open.append(target) }
      }
    }
    return false
  }

  @Test func `stuck nodes and circles of random graphs are those of the definition`() {
    var random = SystemRandomNumberGenerator()
    for _ in 0..<(isSanitized ? 500 : 3_000) {
      let count = Int.random(in: 1...9, using: &random)
      var waits: [Wait] = []
      for _ in 0..<count {
        let targets = (0..<Int.random(in: 1...2, using: &random)).map { _ in Int.random(in: 0..<count, using: &random) }
        waits.append(Int.random(in: 0..<4, using: &random) == 0 ? .children : .any(targets))
      }
      let parents = waits.indices.map { node -> Int in
        let parent = Int.random(in: 0..<count, using: &random)
        if case .children = waits[parent], parent != node { return parent }
        return -1
      }
      let released = Set(waits.indices.filter { _ in Int.random(in: 0..<6, using: &random) == 0 })
      var graph = DeadlockGraph(waits)
      // Some before the parents are known, and some after.
      for node in released where node % 2 == 0 { graph.release(node) }
      graph.setParents(parents)
      for node in released where node % 2 == 1 { graph.release(node) }
      let isStuck = Self.stuck(waits, parents, released)
      #expect(graph.isStuck == isStuck, "\(waits) \(parents) \(released)")
      let circles = graph.circles()
      for node in waits.indices where isStuck[node] {
        let own = waits.indices.filter {
          isStuck[$0] && Self.leads(node, to: $0, waits, parents, isStuck)
            && Self.leads($0, to: node, waits, parents, isStuck)
        }
        let found = circles.first { $0.contains(node) } ?? []
        #expect(found.sorted() == own, "\(waits) \(parents) \(released)")
      }
      #expect(circles.allSatisfy { Set($0).count == $0.count && $0.allSatisfy { isStuck[$0] } })
    }
  }

  @Test func `a circle begins with its lowest node and follows the waits`() {
    var graph = DeadlockGraph([.any([3]), .any([0]), .any([1]), .any([2]), .any([0])])
    graph.setParents(Array(repeating: -1, count: 5))
    #expect(graph.circles() == [[0, 3, 2, 1]])
    #expect(graph.support(of: graph.circles()) == [0, 1, 2, 3])
  }

  @Test func `a chain of a hundred thousand waits needs no stack`() {
    let count = isSanitized ? 30_000 : 100_000
    var graph = DeadlockGraph((0..<count).map { .any([($0 + 1) % count]) })
    graph.setParents(Array(repeating: -1, count: count))
    #expect(graph.circles().map(\.count) == [count])
  }
}
