/// Values in order, taken from the front and put at the back: a circle in memory that grows by doubling.
///
/// Invariants: `capacity` is zero or a power of two; the initialised places are the `count` ones from `head` on, modulo
/// the capacity. Owned by one channel and touched under its lock.
///
/// The operations for the usual case are plain stores and loads in memory of a known type, so that they inline into the
/// caller of a channel. Growing allocates, and does so under the channel's lock: leaving the lock for it would let another
/// sender pass. It happens a logarithmic number of times in a channel's life.
@usableFromInline
struct Ring<Element>: ~Copyable {
  @usableFromInline var storage: UnsafeMutablePointer<Element>?
  @usableFromInline var capacity = 0
  @usableFromInline var head = 0
  @usableFromInline var count = 0

  /// From so many values on it is better to give the memory away and grow anew than to move them one by one under a lock.
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

  /// Puts a value at the back.
  ///
  /// There is room.
  @inlinable @inline(__always)
  mutating func append(_ value: consuming Element) {
    (storage.unsafelyUnwrapped + ((head &+ count) & (capacity &- 1))).initialize(to: value)
    count &+= 1
  }

  /// Takes the value at the front.
  ///
  /// There is one.
  @inlinable @inline(__always)
  mutating func removeFirst() -> Element {
    let value = (storage.unsafelyUnwrapped + head).move()
    head = (head &+ 1) & (capacity &- 1)
    count &-= 1
    return value
  }

  /// Puts a value at the front, growing where there is no room.
  @inlinable
  mutating func prepend(_ value: consuming Element) {
    if isFull { grow(to: count &+ 1) }
    head = (head &- 1) & (capacity &- 1)
    (storage.unsafelyUnwrapped + head).initialize(to: value)
    count &+= 1
  }

  /// Makes room for at least `wanted` values.
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

  /// Takes everything.
  @inlinable
  mutating func removeAll(into values: inout [Element]) {
    while count > 0 { values.append(removeFirst()) }
  }
}
