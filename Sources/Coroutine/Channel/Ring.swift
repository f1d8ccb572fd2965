/// A FIFO of values in a circular buffer.
///
/// Invariants: `capacity` is zero or a power of two. The initialised elements are the `count` elements from `head` on,
/// modulo the capacity. One channel owns the ring and accesses it under its lock.
///
/// The frequent operations are plain loads and stores in memory of a known type, so they inline into the caller of a
/// channel. Only `init`, `makeRoom` and `deinit` allocate or free, so they are never called under a lock. A channel
/// grows its ring by creating a larger one outside the lock, and moving the values to it under the lock
/// (`Channel.lockWithRoom`). To move them is one copy of plain memory; because capacities double, a ring that holds n
/// values has copied fewer than n in all.
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
  init(capacity wanted: Int) {
    if wanted == 0 { return }
    capacity = 8
    while capacity < wanted { capacity *= 2 }
    storage = .allocate(capacity: capacity)
  }

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
  mutating func removeFirst() -> sending Element {
    // Sound because the ring gives away the only reference that it has; the owner of the ring was given the value.
    nonisolated(unsafe) let value = (storage.unsafelyUnwrapped + head).move()
    head = (head &+ 1) & (capacity &- 1)
    count &-= 1
    return value
  }

  /// Adds a value at the front.
  ///
  /// Requires room.
  @inlinable
  mutating func prepend(_ value: consuming Element) {
    head = (head &- 1) & (capacity &- 1)
    (storage.unsafelyUnwrapped + head).initialize(to: value)
    count &+= 1
  }

  /// The number of values that can be added.
  @inlinable var room: Int { capacity &- count }

  /// The capacity of a ring with room for this one's values and `more`: at least twice this one's.
  @inlinable
  func capacity(for more: Int) -> Int { max(2 * capacity, count + more) }

  /// Moves all values to `other`, an empty ring, and exchanges the two; does nothing unless `other` is larger.
  ///
  /// Afterwards `other` is what the caller must free.
  @inlinable
  mutating func exchange(with other: inout Ring) {
    guard other.capacity > capacity else { return }
    if let storage, let fresh = other.storage {
      let untilEnd = min(count, capacity - head)
      fresh.moveInitialize(from: storage + head, count: untilEnd)
      (fresh + untilEnd).moveInitialize(from: storage, count: count - untilEnd)
    }
    (other.head, other.count, count) = (0, count, 0)
    swap(&self, &other)
  }

  /// Makes room for `more` values.
  ///
  /// Allocates, so it is for the ring of one owner, which no lock guards.
  @inlinable
  mutating func makeRoom(for more: Int) {
    if room >= more { return }
    var larger = Ring(capacity: capacity(for: more))
    exchange(with: &larger)
  }

  /// Moves all values to the end of `values`.
  @inlinable
  mutating func removeAll(into values: inout [Element]) {
    while count > 0 { values.append(removeFirst()) }
  }
}
