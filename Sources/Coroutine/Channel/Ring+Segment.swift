// The memory of a ring: one allocation that begins with a header, and contains a circular buffer.

/// The header of a segment.
///
/// While the segment is the front of its ring, the ring has `head` and `count` (Ring.swift).
@usableFromInline
struct Segment {
  @usableFromInline var next: UnsafeMutablePointer<Segment>?
  /// The number of values that fit, a power of two.
  @usableFromInline let capacity: Int
  @usableFromInline var head = 0
  @usableFromInline var count = 0

  @inlinable
  init(capacity: Int) { self.capacity = capacity }
}

@usableFromInline typealias SegmentRef = UnsafeMutablePointer<Segment>

extension UnsafeMutablePointer<Segment> {
  /// Allocates an empty segment for at least `wanted` values.
  ///
  /// Never called under a channel's lock.
  @inlinable
  static func make<Element>(_ wanted: Int, of type: Element.Type) -> SegmentRef {
    var capacity = 8
    while capacity < wanted { capacity *= 2 }
    let memory = UnsafeMutableRawPointer.allocate(
      byteCount: offset(of: type) + capacity * MemoryLayout<Element>.stride,
      alignment: alignment(of: type)
    )
    let segment = memory.bindMemory(to: Segment.self, capacity: 1)
    segment.initialize(to: Segment(capacity: capacity))
    return segment
  }

  /// Allocates a segment with these values.
  @inlinable
  static func make<Element>(holding values: [Element]) -> SegmentRef {
    let segment = make(values.count, of: Element.self)
    let elements = segment.elements(of: Element.self)
    for (index, value) in values.enumerated() { (elements + index).initialize(to: value) }
    segment.pointee.count = values.count
    return segment
  }

  /// Frees a chain of segments that contain no values.
  ///
  /// Never called under a channel's lock.
  @inlinable
  static func freeAll(_ first: SegmentRef?) {
    var next = first
    while let segment = next {
      next = segment.pointee.next
      UnsafeMutableRawPointer(segment).deallocate()
    }
  }

  @inlinable
  func elements<Element>(of type: Element.Type) -> UnsafeMutablePointer<Element> {
    (UnsafeMutableRawPointer(self) + Self.offset(of: type)).assumingMemoryBound(to: Element.self)
  }

  /// The segment that `elements` are in.
  @inlinable
  init<Element>(of elements: UnsafeMutablePointer<Element>) {
    self = (UnsafeMutableRawPointer(elements) - Self.offset(of: Element.self)).assumingMemoryBound(to: Segment.self)
  }

  /// The position of the next value.
  @inlinable var end: Int { (pointee.head &+ pointee.count) & (pointee.capacity &- 1) }

  @inlinable
  static func alignment<Element>(of type: Element.Type) -> Int {
    max(MemoryLayout<Element>.alignment, MemoryLayout<Segment>.alignment)
  }

  @inlinable
  static func offset<Element>(of type: Element.Type) -> Int {
    let alignment = alignment(of: type)
    return (MemoryLayout<Segment>.size + alignment - 1) & ~(alignment - 1)
  }
}
