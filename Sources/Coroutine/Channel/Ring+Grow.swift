// The rare operations of a ring, on whole segments. The invariants are in Ring.swift.

extension Ring {
  /// The capacity of the segment that values enter.
  @inlinable var backCapacity: Int { lastBehind?.pointee.capacity ?? capacity }

  /// Whether a value can enter the last segment while the front is full.
  @inlinable var hasRoomBehind: Bool { lastBehind.map { $0.pointee.count < $0.pointee.capacity } ?? false }

  /// Adds a value at the back while the front is full; returns false, and leaves the value, if there is no room.
  @inlinable @inline(never)
  mutating func appendBehind(_ slot: UnsafeMutablePointer<Element?>) -> Bool {
    guard let last = lastBehind, last.pointee.count < last.pointee.capacity else { return false }
    (last.elements(of: Element.self) + last.end).initialize(to: slot.take().unsafelyUnwrapped)
    last.pointee.count &+= 1
    countBehind &+= 1
    return true
  }

  /// The capacity of the next segment: twice the last one's, or the limit once that would reach it.
  ///
  /// So a channel with a limit has a last segment of at least `limit` before it is full, and needs no further one.
  @inlinable
  func nextCapacity(_ limit: Int) -> Int {
    let next = max(8, backCapacity * 2)
    return limit == .max || total < limit - min(limit, next) ? next : limit
  }

  /// Adds an empty segment at the back.
  @inlinable
  mutating func add(_ segment: SegmentRef) {
    if storage == nil { return setFront(segment) }
    segment.pointee.next = nil
    if let last = lastBehind { last.pointee.next = segment } else { firstBehind = segment }
    lastBehind = segment
    capacity = 0
  }

  /// Adds a segment with values in front of all others.
  @inlinable
  mutating func addFirst(_ segment: SegmentRef) {
    if let storage {
      let old = SegmentRef(of: storage)
      (old.pointee.head, old.pointee.count, old.pointee.next) = (head, count, firstBehind)
      countBehind &+= count
      firstBehind = old
      if lastBehind == nil { lastBehind = old }
    }
    setFront(segment)
  }

  /// Makes the next segment the front, in place of an empty one; returns false if there is none.
  @inlinable @inline(never)
  mutating func promote() -> Bool {
    guard let segment = firstBehind else { return false }
    if let storage { retire(SegmentRef(of: storage)) }
    firstBehind = segment.pointee.next
    if firstBehind == nil { lastBehind = nil }
    countBehind &-= segment.pointee.count
    setFront(segment)
    return true
  }

  /// Makes the next segment with values the front, in place of empty ones; returns false if there is none.
  @inlinable @inline(never)
  mutating func promoteValues() -> Bool {
    while count == 0 { if !promote() { return false } }
    return true
  }

  @inlinable
  mutating func setFront(_ segment: SegmentRef) {
    storage = segment.elements(of: Element.self)
    mask = segment.pointee.capacity &- 1
    (head, count) = (segment.pointee.head, segment.pointee.count)
    capacity = firstBehind == nil ? segment.pointee.capacity : 0
  }

  /// Puts an empty segment aside, to be freed outside the lock.
  @inlinable
  mutating func retire(_ segment: SegmentRef) {
    segment.pointee.next = retired
    retired = segment
  }

  /// Returns the retired segments, for the caller to free outside the lock.
  @inlinable
  mutating func takeRetired() -> SegmentRef? {
    defer { retired = nil }
    return retired
  }
}
