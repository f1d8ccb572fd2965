// A FIFO of values: a circular buffer, the front segment, and behind it further segments, each circular too.
//
//   values leave here                                          values enter here
//   front (storage, head, count) -> firstBehind -> ... -> lastBehind
//
//   OPEN     one segment, or none: values enter the front segment
//   SEALED   segments are behind the front: `capacity` is 0, so the front counts as full, and values enter the last one
//
//   OPEN --- full, and a segment is added ---> SEALED --- the segments before the last one are empty ---> OPEN
//
// Invariants
//  1. One channel owns the ring, and accesses it under its lock. No operation on a channel's ring allocates, frees, or
//     takes more than constant time. A sender that finds no room leaves the lock, allocates a segment, and tries again;
//     until then it has sent nothing, so other senders may come before it.
//  2. Segments that have become empty are `retired`. The next thread that adds a segment frees them, outside the lock.
//  3. While OPEN, `capacity` is the front segment's, `mask` is one less, and nothing is behind.
//
// The frequent operations are plain loads and stores in memory of a known type, so they inline into the caller of a
// channel. They are the same whether the ring is OPEN or SEALED: only a full front, or an empty one, leads elsewhere.
@usableFromInline
struct Ring<Element>: ~Copyable {
  @usableFromInline var storage: UnsafeMutablePointer<Element>?
  @usableFromInline var capacity = 0
  @usableFromInline var mask = 0
  @usableFromInline var head = 0
  /// The number of values in the front segment.
  @usableFromInline var count = 0
  @usableFromInline var firstBehind: SegmentRef?
  @usableFromInline var lastBehind: SegmentRef?
  @usableFromInline var countBehind = 0
  @usableFromInline var retired: SegmentRef?

  /// From this number of values on, giving the memory away and growing anew is cheaper than moving values one by one
  /// under a lock.
  @inlinable static var many: Int { 1_024 }

  @inlinable
  init(capacity: Int) { if capacity > 0 { setFront(.make(capacity, of: Element.self)) } }

  @inlinable
  deinit {
    var (front, start, left) = (storage, head, count)
    var next = firstBehind
    while let elements = front {
      let segment = SegmentRef(of: elements)
      for index in 0..<left { (elements + ((start &+ index) & (segment.pointee.capacity &- 1))).deinitialize(count: 1) }
      segment.pointee.next = nil
      SegmentRef.freeAll(segment)
      (front, start, left) = (next?.elements(of: Element.self), next?.pointee.head ?? 0, next?.pointee.count ?? 0)
      next = next?.pointee.next
    }
    SegmentRef.freeAll(retired)
  }

  /// The number of values in all segments.
  @inlinable var total: Int { count &+ countBehind }

  /// Whether a value cannot enter the front segment.
  @inlinable
  var isFull: Bool {
    @inline(__always) get { count >= capacity }
  }

  /// Adds a value at the back of the front segment.
  ///
  /// Requires that it is not full.
  @inlinable @inline(__always)
  mutating func append(_ value: consuming Element) {
    (storage.unsafelyUnwrapped + ((head &+ count) & mask)).initialize(to: value)
    count &+= 1
  }

  /// Removes and returns the value at the front.
  ///
  /// Requires one in the front segment.
  @inlinable @inline(__always)
  mutating func removeFirst() -> Element {
    let value = (storage.unsafelyUnwrapped + head).move()
    head = (head &+ 1) & mask
    count &-= 1
    return value
  }

  /// Removes and returns the value at the front, in whichever segment it is.
  @inlinable
  mutating func popFirst() -> Element? {
    while count == 0 { if !promote() { return nil } }
    return removeFirst()
  }

  /// Moves all values to the end of `values`.
  @inlinable
  mutating func removeAll(into values: inout [Element]) {
    while let value = popFirst() { values.append(value) }
  }
}
