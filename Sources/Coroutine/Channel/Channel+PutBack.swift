// Values that a receiver has taken and cannot keep, because it was cancelled before it had all that it wanted.
//
// They are moved into a segment before the lock is taken, and the segment becomes the front of the ring: constant time
// under the lock, except for the values that go to waiting receivers, each of which is claimed.

extension Channel {
  /// Puts back values that were taken and cannot be kept.
  @inlinable
  func putBack(_ values: inout [Element]) {
    guard !values.isEmpty else { return }
    let returned = SegmentRef.make(holding: values)
    let spare = SegmentRef.make(values.count, of: Element.self)
    // Releases this array's references first: after this, a receiver that lets go of its value holds the last reference
    // to it.
    values = []
    var woken = WaitQueue()
    lock.lock()
    let isKept = state.putBack(returned, lost: spare, &woken)
    lock.unlock()
    while let waiter = woken.popFirst() { waiter.wake() }
    if !isKept { SegmentRef.freeAll(spare) }
    let lost = isKept ? spare : returned
    let lostElements = lost.elements(of: Element.self)
    for index in 0..<lost.pointee.count {
      let value = (lostElements + index).move()
      onUndelivered?(value)
    }
    SegmentRef.freeAll(lost)
  }
}

extension ChannelState {
  /// Gives values that a receiver could not keep to the waiting receivers, or puts them back to the front.
  ///
  /// Takes over the segment. If the ring of a `dropOldest` channel has no room for all, the oldest of the remaining
  /// values are moved to `lost`. Returns false, and leaves the segment to the caller, if nothing will be received any
  /// more.
  @inlinable
  mutating func putBack(_ segment: SegmentRef, lost: SegmentRef, _ woken: inout WaitQueue) -> Bool {
    if isCancelled || endWasTold { return false }
    let elements = segment.elements(of: Element.self)
    while segment.pointee.count > 0, let waiter = receivers.claimFirst() {
      waiter.slot(of: Element.self).initialize(to: (elements + segment.pointee.head).move())
      segment.pointee.head += 1
      segment.pointee.count -= 1
      woken.append(waiter)
    }
    if overflow == .dropsOldest {
      let surplus = segment.pointee.count - min(segment.pointee.count, max(0, limit - ring.total))
      lost.elements(of: Element.self).moveInitialize(from: elements + segment.pointee.head, count: surplus)
      lost.pointee.count = surplus
      segment.pointee.head += surplus
      segment.pointee.count -= surplus
    }
    if segment.pointee.count > 0 { ring.addFirst(segment) } else { ring.retire(segment) }
    return true
  }
}
