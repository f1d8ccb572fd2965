import Coroutine

/// A list of byte strings with two ends: a ring that doubles.
///
/// The items are `ring[(first + i) % ring.count]` for i < count; all other elements are empty arrays.
final class List {
  enum End {
    case left
    case right
  }

  private var ring = [[UInt8]](repeating: [], count: 8)
  private var first = 0
  private(set) var count = 0

  subscript(index: Int) -> [UInt8] { ring[(first + index) & (ring.count - 1)] }

  func push(_ item: [UInt8], _ end: End) {
    if count == ring.count { grow() }
    let mask = ring.count - 1
    switch end {
    case .left:
      first = (first - 1) & mask
      ring[first] = item
    case .right: ring[(first + count) & mask] = item
    }
    count += 1
  }

  func pop(_ end: End) -> [UInt8]? {
    guard count > 0 else { return nil }
    let mask = ring.count - 1
    let index = end == .left ? first : (first + count - 1) & mask
    var item: [UInt8] = []
    swap(&item, &ring[index])
    if end == .left { first = (first + 1) & mask }
    count -= 1
    return item
  }

  private func grow() {
    var larger: [[UInt8]] = []
    larger.reserveCapacity(ring.count * 2)
    larger += ring[first...]
    larger += ring[..<first]
    larger += repeatElement([], count: ring.count)
    ring = larger
    first = 0
  }
}

/// An item that was taken for a client, and from where.
struct Popped: Sendable {
  let key: [UInt8]
  let value: [UInt8]
  let end: List.End
}

/// A client that waits for an item of one of several lists (BLPOP).
final class WaitingClient: Sendable {
  let end: List.End
  /// Has room for the one item that the client waits for.
  let items = Channel<Popped>(1)

  init(_ end: List.End) { self.end = end }
}
