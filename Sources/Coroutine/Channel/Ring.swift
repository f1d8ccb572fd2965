/// A FIFO of values in a circular buffer that grows by doubling.
///
/// Invariants: `capacity` is zero or a power of two. The initialised elements are the `count` elements from `head` on,
/// modulo the capacity. One channel owns the ring and accesses it under its lock.
///
/// The frequent operations are plain loads and stores in memory of a known type, so they inline into the caller of a
/// channel. Growing allocates under the channel's lock: if it left the lock, another sender could overtake. It happens
/// a logarithmic number of times in a channel's life.
@usableFromInline
struct Ring<Element>: ~Copyable {
  @usableFromInline var storage: UnsafeMutablePointer<Element>?
  @usableFromInline var capacity = 0
  @usableFromInline var head = 0
  @usableFromInline var count = 0

  /// From this number of values on, giving the memory away and growing anew is cheaper than moving values one by one
  /// under a lock.
  @inlinable static var many: Int { 1_024 }

  @inlinable
  init(capacity: Int) { if capacity > 0 { grow(to: capacity) } }

  @inlinable
  deinit {
    guard let storage else { return }
    for index in 0..<count { (storage + ((head &+ index) & (capacity &- 1))).deinitialize(count: 1) }
    storage.deallocate()
  }

  @inlinable
  var isFull: Bool {
    @inline(__always) get { count == capacity }
  }

  /// Adds a value at the back.
  ///
  /// Requires room.
  @inlinable @inline(__always)
  mutating func append(_ value: consuming Element) {
    (storage.unsafelyUnwrapped + ((head &+ count) & (capacity &- 1))).initialize(to: value)
    count &+= 1
  }

  /// Removes and returns the value at the front.
  ///
  /// Requires a value.
  @inlinable @inline(__always)
  mutating func removeFirst() -> Element {
    let value = (storage.unsafelyUnwrapped + head).move()
    head = (head &+ 1) & (capacity &- 1)
    count &-= 1
    return value
  }

  /// Adds a value at the front, and grows if there is no room.
  @inlinable
  mutating func prepend(_ value: consuming Element) {
    if isFull { grow(to: count &+ 1) }
    head = (head &- 1) & (capacity &- 1)
    (storage.unsafelyUnwrapped + head).initialize(to: value)
    count &+= 1
  }

  /// Grows the buffer to at least `wanted` values.
  @inlinable @inline(never)
  mutating func grow(to wanted: Int) {
    var larger = max(capacity, 8)
    while larger < wanted { larger *= 2 }
    let fresh = UnsafeMutablePointer<Element>.allocate(capacity: larger)
    if let storage {
      let untilEnd = min(count, capacity - head)
      fresh.moveInitialize(from: storage + head, count: untilEnd)
      (fresh + untilEnd).moveInitialize(from: storage, count: count - untilEnd)
      storage.deallocate()
    }
    (storage, capacity, head) = (fresh, larger, 0)
  }

  /// Moves all values to the end of `values`.
  @inlinable
  mutating func removeAll(into values: inout [Element]) {
    while count > 0 { values.append(removeFirst()) }
  }
}
