#if NIO
import NIOCore

/// The values that a channel has received and that no coroutine has taken, first in, first out.
///
/// A ring that grows by doubling. It shrinks when it is found empty: a peer that has sent very many small values at
/// once leaves no memory. NIOCore's CircularBuffer stores optionals, and copies and assigns them by functions that are
/// looked up at run time. Here a value is copied once, and then moved, which saves 460 instructions for each value
/// (docs/evolution/0024).
struct ReceivedValues: ~Copyable {
  // Invariant: the `count` elements from `first` on, modulo `capacity`, are initialized, and no others. The capacity is
  // a power of two.
  private var elements: UnsafeMutablePointer<NIOAny>
  private var capacity = 4
  private var first = 0
  private var count = 0

  /// The capacity that an empty ring keeps.
  private static var kept: Int { 64 }

  init() { elements = .allocate(capacity: capacity) }

  deinit {
    for index in 0..<count { (elements + (first + index) & (capacity - 1)).deinitialize(count: 1) }
    elements.deallocate()
  }

  /// Appends a value, in amortised constant time.
  mutating func append(_ value: NIOAny) {
    if count == capacity { grow() }
    (elements + (first + count) & (capacity - 1)).initialize(to: value)
    count += 1
  }

  /// Takes the oldest value.
  mutating func popFirst() -> NIOAny? {
    if count == 0 {
      if capacity > Self.kept { shrink() }
      return nil
    }
    let value = (elements + first).move()
    first = (first + 1) & (capacity - 1)
    count -= 1
    return value
  }

  @inline(never)
  private mutating func shrink() {
    elements.deallocate()
    capacity = Self.kept
    elements = .allocate(capacity: capacity)
    first = 0
  }

  private mutating func grow() {
    let larger = UnsafeMutablePointer<NIOAny>.allocate(capacity: 2 * capacity)
    // The ring is full, so its two ends are all of it.
    larger.moveInitialize(from: elements + first, count: capacity - first)
    (larger + (capacity - first)).moveInitialize(from: elements, count: first)
    elements.deallocate()
    elements = larger
    capacity *= 2
    first = 0
  }
}
#endif
