/// What a channel consists of, and what each event does to it.
///
/// Pure: it locks nothing, wakes nobody and calls nothing foreign; it claims waits and moves values, and tells its
/// caller whom to wake after the lock is left.
///
/// Invariants, under the lock
///  1. While a receiver waits the ring is empty and no sender waits, so a hand-off never overtakes what is buffered. (A
///     select may wait on both sides of one channel; its two nodes never match, because whoever looks for a partner is
///     running and has no wait to claim.)
///  2. Senders wait only where the overflow says so and the ring holds `limit` values or more. It holds more only after
///     values were put back: whoever had them is cancelled and cannot wait for room, and to drop a value that a bounded
///     channel has accepted, or the oldest of one that drops its newest, would be worse. A ring that drops its oldest never
///     holds more.
///  3. Once closed, nobody waits and nothing is added.
///  4. A value changes hands together with the claim of its receiver's or sender's wait. Whoever loses the claim has not
///     touched the value. Hence every value that was accepted is in one place: the ring, a slot, or its receiver.
///  5. Once somebody was told the end the ring is empty for ever: nobody receives after a nil.
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
  @usableFromInline var receivers = WaitQueue()
  @usableFromInline var senders = WaitQueue()
  @usableFromInline var isClosed = false
  /// Closed, and nothing that is left will be received.
  @usableFromInline var isCancelled = false
  /// Closed, and somebody has been answered so.
  @usableFromInline var endWasTold = false
  @usableFromInline let overflow: Overflow
  /// How many values the ring takes in before `overflow` counts.
  @usableFromInline let limit: Int
  /// What it was closed with; never changes afterwards.
  @usableFromInline var cause: (any Error)?

  @inlinable
  init(limit: Int, overflow: Overflow) {
    self.limit = limit
    self.overflow = overflow
    // Bounded channels allocate when they are made and never again, unless they hold very many (takeRing).
    ring = Ring(capacity: limit == .max ? 0 : min(limit, max(8, 65_536 / max(1, MemoryLayout<Element>.stride))))
  }

  /// A send.
  ///
  /// The value is taken out of the slot when it is accepted; a dropped one is left there. Woken: who received it.
  @inlinable @inline(__always)
  mutating func offer(
    _ slot: UnsafeMutablePointer<Element?>,
    _ woken: inout UnsafeMutablePointer<Waiter>?
  ) -> Offer {
    if receivers.first != nil, let waiter = receivers.claimFirst() {
      waiter.slot(of: Element.self).initialize(to: slot.take())
      woken = waiter
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
    _ woken: inout UnsafeMutablePointer<Waiter>?
  ) -> Bool {
    if ring.count > 0 {
      slot.initialize(to: ring.removeFirst())
      if senders.first != nil { woken = refill() }
      return true
    }
    if senders.first != nil, let waiter = senders.claimFirst() {
      slot.initialize(to: waiter.slot(of: Element.self).take())
      woken = waiter
      return true
    }
    return false
  }

  /// After a value has left the ring: the first waiting sender's takes the place.
  @inlinable @inline(__always)
  mutating func refill() -> UnsafeMutablePointer<Waiter>? {
    guard ring.count < limit, let waiter = senders.claimFirst() else { return nil }
    ring.append(waiter.slot(of: Element.self).take().unsafelyUnwrapped)
    return waiter
  }

  /// Whether the answer to a receive that found nothing is the end, which then holds for all.
  @inlinable @inline(__always)
  mutating func tellsEnd() -> Bool {
    if isClosed { endWasTold = true }
    return isClosed
  }

  /// Takes all at once where that moves more than copying would under the lock: many values, all wanted, and no sender
  /// whose value has to move up.
  ///
  /// The memory goes with them, so a channel that was once full to the brim does not keep it.
  @inlinable
  mutating func takeRing(_ taken: inout Ring<Element>, _ most: Int) -> Bool {
    guard ring.count >= Ring<Element>.many, ring.count <= most, senders.first == nil else { return false }
    swap(&taken, &ring)
    return true
  }

  /// Gives values that a receiver could not keep to the receivers that wait, or puts them back to the front.
  ///
  /// Answers which of them are lost: all, where nobody receives any more; else those for which a ring that drops its
  /// oldest has no room, the oldest of what is left.
  @inlinable
  mutating func putBack(_ values: [Element], _ woken: inout WaitQueue) -> Range<Int> {
    if isCancelled || endWasTold { return values.indices }
    var index = 0
    while index < values.count, let waiter = receivers.claimFirst() {
      waiter.slot(of: Element.self).initialize(to: values[index])
      woken.append(waiter)
      index += 1
    }
    var kept = index
    if overflow == .dropsOldest { kept = max(index, values.count - max(0, limit - ring.count)) }
    for value in values[kept...].reversed() { ring.prepend(value) }
    return index..<kept
  }

  /// Closes; false when it was closed before.
  ///
  /// Claims everyone who waits: their waits end when the caller wakes them, and until then the senders' values are the
  /// caller's to take.
  @inlinable
  mutating func close(_ cause: (any Error)?, _ woken: inout WaitQueue) -> Bool {
    if isClosed { return false }
    isClosed = true
    self.cause = cause
    while let waiter = receivers.claimFirst() {
      endWasTold = true
      woken.append(waiter)
    }
    while let waiter = senders.claimFirst() {
      waiter.valueWaiter.pointee.isClosed = true
      woken.append(waiter)
    }
    return true
  }
}
