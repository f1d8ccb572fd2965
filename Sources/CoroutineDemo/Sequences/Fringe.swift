#if Demo
import Coroutine

/// A binary tree with letters at its leaves.
indirect enum Tree: Sendable {
  case leaf(Character)
  case node(Tree, Tree)

  /// The leaves from left to right: the recursion yields from whatever depth it is at.
  var fringe: Generator<Character, Never, Void> {
    co_sequence { yield in try visit { try yield($0) } }
  }

  private func visit(_ body: (Character) throws -> Void) rethrows {
    switch self {
    case .leaf(let letter): try body(letter)
    case .node(let left, let right):
      try left.visit(body)
      try right.visit(body)
    }
  }

  /// One that leans to the left, ((ab)c)d…; nil for no letters.
  static func leaningLeft(_ letters: String) -> Tree? {
    letters.dropFirst().reduce(letters.first.map(Tree.leaf)) { tree, letter in tree.map { .node($0, .leaf(letter)) } }
  }

  /// One that leans to the right, a(b(c…)); nil for no letters.
  static func leaningRight(_ letters: String) -> Tree? {
    letters.dropLast().reversed().reduce(letters.last.map(Tree.leaf)) { tree, letter in
      tree.map { .node(.leaf(letter), $0) }
    }
  }
}

/// Whether two trees have the same leaves in the same order, however they are shaped, and how many leaves were looked
/// at.
///
/// Both walks go on only as long as they agree. Without generators one walk has to be turned inside out into a stack of
/// nodes kept by hand, or both trees have to be walked to their ends.
func compareFringes(_ one: Tree, _ other: Tree) -> (isSame: Bool, looks: Int) {
  let (first, second) = (one.fringe, other.fringe)
  var looks = 0
  while true {
    let (a, b) = (first.next(), second.next())
    if a == nil && b == nil { return (true, looks) }
    looks += 1
    if a != b { return (false, looks) }
  }
}
#endif
