/// What a channel consists of, and what each event does to it.
///
/// Pure: it locks nothing, wakes nobody and calls nothing foreign; it claims waits and moves values, and tells its
/// caller whom to wake after the lock is left.
///
/// Invariants, under the lock
///  1. While a receiver waits the ring is empty and no sender waits, so a hand-off never overtakes what is buffered. (A
///     select may wait on both sides of one channel; its two nodes never match, because whoever looks for a partner is
///     running and has no wait to claim.)
///  2. Senders wait only where the overflow says so and the ring holds `limit` values or more.
///  3. Once closed, nobody waits and nothing is added.
///  4. A value changes hands together with the claim of its receiver's or sender's wait. Whoever loses the claim has not
///     touched the value. Hence every value that was accepted is in one place: the ring, a slot, or its receiver.
///
///   OPEN --- close ---> CLOSED, what is buffered remains --- received or cancelled ---> CLOSED and drained
@usableFromInline
struct ChannelState<Element: Sendable>: ~Copyable {
  /// What a full ring does to a sender.
  @usableFromInline enum Overflow: UInt8, Sendable { case waits, dropsOldest, dropsNewest }
  /// What became of an offer.
  @usableFromInline enum Offer: UInt8, Sendable {
    /// Received or buffered; if the slot is not empty, what is in it was dropped.
    case accepted
    case full
    case closed
  }

  @usableFromInline var ring: Ring<Element>
  @usableFromInline var receivers = WaitList()
  @usableFromInline var senders = WaitList()
  @usableFromInline var isClosed = false
  /// Closed, and nothing that is left will be received.
  @usableFromInline var isCancelled = false
  @usableFromInline let overflow: Overflow
  /// How many values the ring takes in before `overflow` counts.
  @usableFromInline let limit: Int
  /// What it was closed with; never changes afterwards.
  @usableFromInline var cause: (any Error)?

  @inlinable
  init(limit: Int, overflow: Overflow) {
    self.limit = limit
    self.overflow = overflow
    // Bounded channels allocate when they are made and never again, unless they are large.
    ring = Ring(capacity: limit == .max ? 0 : min(limit, max(8, 65_536 / max(1, MemoryLayout<Element>.stride))))
  }

  /// A send.
  ///
  /// The value is taken out of the slot when it is accepted; a dropped one is left there. Woken: who received it.
  @inlinable @inline(__always)
  mutating func offer(
    _ slot: UnsafeMutablePointer<Element?>,
    _ woken: inout UnsafeMutablePointer<WaitNode>?
  ) -> Offer {
    if receivers.first != nil, let node = receivers.claimFirst() {
      node.slot(of: Element.self).initialize(to: slot.take())
      woken = node
      return .accepted
    }
    if ring.count < limit, !isClosed {
      if ring.isFull { ring.grow(to: ring.count &+ 1) }
      ring.append(slot.take().unsafelyUnwrapped)
      return .accepted
    }
    return overflow == .waits || isClosed ? (isClosed ? .closed : .full) : displace(slot)
  }

  /// A send to a full channel that drops.
  @inlinable @inline(never)
  mutating func displace(_ slot: UnsafeMutablePointer<Element?>) -> Offer {
    guard overflow == .dropsOldest else { return .full }
    let oldest = ring.removeFirst()
    ring.append(slot.take().unsafelyUnwrapped)
    slot.initialize(to: oldest)
    return .accepted
  }

  /// A receive: false when there is nothing.
  ///
  /// Woken: the sender whose wait it ended.
  @inlinable @inline(__always)
  mutating func take(
    _ slot: UnsafeMutablePointer<Element?>,
    _ woken: inout UnsafeMutablePointer<WaitNode>?
  ) -> Bool {
    if ring.count > 0 {
      slot.initialize(to: ring.removeFirst())
      if senders.first != nil { woken = refill() }
      return true
    }
    if senders.first != nil, let node = senders.claimFirst() {
      slot.initialize(to: node.slot(of: Element.self).take())
      woken = node
      return true
    }
    return false
  }

  /// After a value has left the ring: the first waiting sender's takes the place.
  @inlinable @inline(__always)
  mutating func refill() -> UnsafeMutablePointer<WaitNode>? {
    guard ring.count < limit, let node = senders.claimFirst() else { return nil }
    ring.append(node.slot(of: Element.self).take().unsafelyUnwrapped)
    return node
  }

  /// Puts values that a receiver could not keep back to the front, or gives them to the receivers that wait.
  @inlinable
  mutating func putBack(_ values: inout [Element], _ woken: inout WaitList) {
    var index = 0
    while index < values.count, let node = receivers.claimFirst() {
      node.slot(of: Element.self).initialize(to: values[index])
      woken.append(node)
      index += 1
    }
    for value in values[index...].reversed() { ring.prepend(value) }
    values.removeAll()
  }

  /// Closes; false when it was closed before.
  ///
  /// Claims everyone who waits: their waits end when the caller wakes them, and until then the senders' values are the
  /// caller's to take.
  @inlinable
  mutating func close(_ cause: (any Error)?, _ woken: inout WaitList) -> Bool {
    if isClosed { return false }
    isClosed = true
    self.cause = cause
    while let node = receivers.claimFirst() { woken.append(node) }
    while let node = senders.claimFirst() {
      node.slotNode.pointee.isClosed = true
      woken.append(node)
    }
    return true
  }
}
