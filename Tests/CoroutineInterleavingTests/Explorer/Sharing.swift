/// What the threads of a model share, as far as executions have shown.
///
/// Locations are numbered in the order in which an execution makes them, so a number means the same in every execution.
struct Sharing {
  static var mostLocations: Int { 1_024 }

  /// Whether a location was found to be shared that was not known to be.
  var hasGrown = false
  /// The threads that use each location, a bit each; the highest bit: one of them changes it.
  private let uses = UnsafeMutablePointer<UInt>.allocate(capacity: Sharing.mostLocations)
  private var count = 0

  init() { uses.initialize(repeating: 0, count: Self.mostLocations) }

  func free() { uses.deallocate() }

  /// Begins an execution.
  mutating func begin() { count = 0 }

  /// The number of a new location.
  mutating func add() -> Int {
    precondition(count < Self.mostLocations, "a model has too many locations")
    count += 1
    return count - 1
  }

  /// Notes the use of a location; returns whether it is shared.
  mutating func notes(_ location: Int, _ thread: Int, isChange: Bool) -> Bool {
    let old = uses[location]
    let new = old | 1 << UInt(thread) | (isChange ? 1 << 63 : 0)
    uses[location] = new
    let isShared = Self.isShared(new)
    if isShared, !Self.isShared(old) { hasGrown = true }
    return isShared
  }

  private static func isShared(_ use: UInt) -> Bool {
    let threads = use & ~(1 << 63)
    return use >> 63 != 0 && threads & (threads &- 1) != 0
  }
}
