/// A complete binary tree as programs have it: its nodes can be changed, and lie in memory in the order in which keys
/// came.
///
/// For the order the first of all permutations that a seeded generator gives is as good as any.
public final class SearchTree: @unchecked Sendable {
  // Sound because nothing changes it once it has been made.
  @exclusivity(unchecked) private var left: SearchTree?
  @exclusivity(unchecked) private var right: SearchTree?
  private let number: Int

  private init(_ number: Int) { self.number = number }

  /// A tree of so many levels; its nodes are numbered in the order of a walk.
  public static func make(depth: Int) -> SearchTree {
    var nodes = [SearchTree?](repeating: nil, count: 1 << depth - 1)
    var random = Congruence(state: 1)
    for number in nodes.indices.shuffled(using: &random) { nodes[number] = SearchTree(number) }
    return link(nodes, 0, depth).unsafelyUnwrapped
  }

  private static func link(_ nodes: [SearchTree?], _ first: Int, _ depth: Int) -> SearchTree? {
    if depth == 0 { return nil }
    let half = 1 << (depth - 1)
    let root = nodes[first + half - 1]
    root?.left = link(nodes, first, depth - 1)
    root?.right = link(nodes, first + half, depth - 1)
    return root
  }

  /// Calls `body` with every number, in order.
  public func visit(_ body: (Int) throws -> Void) rethrows {
    try left?.visit(body)
    try body(number)
    try right?.visit(body)
  }
}

/// Knuth's MMIX generator; its upper half will do for a shuffle.
private struct Congruence: RandomNumberGenerator {
  var state: UInt64

  mutating func next() -> UInt64 {
    func step() -> UInt64 {
      state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
      return state >> 32
    }
    return step() << 32 | step()
  }
}
