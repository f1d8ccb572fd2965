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
