/// A complete binary tree that never changes and lies in memory in the order of a walk, which numbers its nodes.
///
/// Here, and not where it is measured, because there the visitor's closure would be compiled into the walk: a visitor
/// that somebody's library offers is called.
public final class Tree: Sendable {
  private let left: Tree?
  private let right: Tree?
  private let number: Int

  /// A tree of so many levels.
  public convenience init(depth: Int) { self.init(depth, first: 0) }

  private init(_ depth: Int, first: Int) {
    let half = 1 << (depth - 1)
    number = first + half - 1
    left = depth > 1 ? Tree(depth - 1, first: first) : nil
    right = depth > 1 ? Tree(depth - 1, first: first + half) : nil
  }

  /// Calls `body` with every number, in order.
  public func visit(_ body: (Int) throws -> Void) rethrows {
    try left?.visit(body)
    try body(number)
    try right?.visit(body)
  }
}
