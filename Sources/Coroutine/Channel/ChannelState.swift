/// The effect of a full channel on a sender.
@usableFromInline enum ChannelOverflow: UInt8, Sendable { case waits, dropsOldest, dropsNewest }

/// The state of a channel, and its transitions.
///
/// Pure: it takes no lock, wakes no waiter and calls no foreign code. It claims waits and moves values, and returns the
/// waiters that its caller must wake after leaving the lock.
///
/// Invariants, under the lock
///  1. While a receiver waits, the ring is empty and no sender waits. So a hand-off never overtakes buffered values. (A
///     select may wait on both sides of one channel; its two waiters never match, because the coroutine that seeks
///     a partner is running and has no wait to claim.)
///  2. Senders wait only if the overflow says so and the ring holds `limit` values or more. It holds more than `limit`
///     for two reasons only. Values were put back: the cancelled receiver that had them cannot wait for room, and
///     dropping a value that a bounded channel has accepted, or the oldest value of a `dropNewest` channel, would be
///     worse. (Into a `dropOldest` channel, no more values are put back than fit.) Or an actor was promised a notice
///     (`insist`), whatever its mailbox holds.
///  3. After the close, there are no waiters and nothing is added.
///  4. A value changes owner together with the claim of its receiver's or sender's wait. A thread that fails to claim
///     the wait has not touched the value. Hence every accepted value is in exactly one place: the ring, a waiter's
///     storage, or its receiver.
///  5. After a receiver was told the end, the ring stays empty: no receiver gets a value after another got nil.
///  6. No transition allocates, because all run under a spin lock. An offer that finds the memory of the ring full
///     answers `noRoom`, and has changed nothing; the channel makes the ring larger and offers again. Until then the
///     value is not sent, so other senders may come before it. While senders wait, the capacity of the ring is `limit`
///     or more (by 2, and because its memory is taken away only while no sender waits), so their values can move up.
///
///   OPEN --- close ---> CLOSED, buffered values remain --- received or cancelled ---> CLOSED and drained
@usableFromInline
struct ChannelState<Element>: ~Copyable {
  /// The result of an offer.
  @usableFromInline enum Offer: UInt8, Sendable {
    /// The value was received or buffered. If the storage is not empty, it now holds the value that was dropped.
    case accepted
    case full
    case closed
    /// The ring must get larger first (invariant 6).
    case noRoom
  }

  @usableFromInline var ring: Ring<Element>
  @usableFromInline var receivers = WaitQueue()
  @usableFromInline var senders = WaitQueue()
  @usableFromInline var isClosed = false
  /// Closed, and no remaining value will be received.
  @usableFromInline var isCancelled = false
  /// Closed, and a receiver has been told so.
  @usableFromInline var endWasTold = false
  @usableFromInline let overflow: ChannelOverflow
  /// The number of values that the ring accepts before `overflow` applies.
  @usableFromInline let limit: Int
  /// The cause given to `close`; constant after the close.
  @usableFromInline var cause: (any Error)?

  @inlinable
  init(limit: Int, overflow: ChannelOverflow) {
    self.limit = limit
    self.overflow = overflow
    // A bounded channel allocates at its creation and never again, except a very large one (takeRing).
    ring = Ring(capacity: limit == .max ? 0 : min(limit, max(8, 65_536 / max(1, MemoryLayout<Element>.stride))))
  }

  /// Offers a value for sending.
  ///
  /// An accepted value is moved out of `storage`; a dropped value is left there. `woken` becomes the receiver of the
  /// value.
  @inlinable @inline(__always)
  mutating func offer(
    _ storage: UnsafeMutablePointer<Element?>,
    _ woken: inout UnsafeMutablePointer<Waiter>?
  ) -> Offer {
    if receivers.first != nil, let waiter = receivers.claimFirst() {
      waiter.storage(of: Element.self).initialize(to: storage.take())
      woken = waiter
      return .accepted
    }
    if ring.count < limit, !isClosed {
      if ring.isFull { return .noRoom }
      ring.append(storage.take().unsafelyUnwrapped)
      return .accepted
    }
    return overflow == .waits || isClosed ? (isClosed ? .closed : .full) : displace(storage)
  }

  /// Sends to a full dropping channel.
  @inlinable @inline(never)
  mutating func displace(_ storage: UnsafeMutablePointer<Element?>) -> Offer {
    guard overflow == .dropsOldest else { return .full }
    let oldest = ring.removeFirst()
    ring.append(storage.take().unsafelyUnwrapped)
    storage.initialize(to: oldest)
    return .accepted
  }

  /// Receives a value; returns false if there is none.
  ///
  /// `woken` becomes the sender whose wait has ended.
  @inlinable @inline(__always)
  mutating func take(
    _ storage: UnsafeMutablePointer<Element?>,
    _ woken: inout UnsafeMutablePointer<Waiter>?
  ) -> Bool {
    if ring.count > 0 {
      storage.initialize(to: ring.removeFirst())
      if senders.first != nil { woken = refill() }
      return true
    }
    if senders.first != nil, let waiter = senders.claimFirst() {
      storage.initialize(to: waiter.storage(of: Element.self).take())
      woken = waiter
      return true
    }
    return false
  }

  /// Moves the first waiting sender's value into the room that a receive has made in the ring.
  @inlinable @inline(__always)
  mutating func refill() -> UnsafeMutablePointer<Waiter>? {
    guard ring.count < limit, let waiter = senders.claimFirst() else { return nil }
    ring.append(waiter.storage(of: Element.self).take().unsafelyUnwrapped)
    return waiter
  }

  /// The number of values that can be received now, or `most` if there are more.
  ///
  /// Fewer can be received if waiting senders have been cancelled.
  @inlinable
  func available(_ most: Int) -> Int {
    var number = ring.count
    var waiter = senders.first
    while number < most, let sender = waiter {
      number &+= 1
      waiter = sender.pointee.next
    }
    return min(number, most)
  }

  /// Whether a receive that found nothing returns the end; the end then holds for all receivers.
  @inlinable @inline(__always)
  mutating func tellsEnd() -> Bool {
    if isClosed { endWasTold = true }
    return isClosed
  }

  /// Takes the whole ring if that is cheaper than copying under the lock: many values, all wanted, and no waiting
  /// sender whose value must move up.
  ///
  /// The memory goes with the values, so a channel that was full once does not keep it.
  @inlinable
  mutating func takeRing(_ taken: inout Ring<Element>, _ most: Int) -> Bool {
    guard ring.count >= Ring<Element>.many, ring.count <= most, senders.first == nil else { return false }
    swap(&taken, &ring)
    return true
  }

  /// Gives values that a receiver could not keep to the waiting receivers, or puts them back to the front.
  ///
  /// Requires room for them in the memory of the ring. Returns the range of the lost values: all values if nothing will
  /// be received any more; otherwise those that exceed the limit of a `dropOldest` channel, the oldest of the remaining
  /// ones.
  @inlinable
  mutating func putBack(_ values: [Element], _ woken: inout WaitQueue) -> Range<Int> {
    if isCancelled || endWasTold { return values.indices }
    var index = 0
    while index < values.count, let waiter = receivers.claimFirst() {
      waiter.storage(of: Element.self).initialize(to: values[index])
      woken.append(waiter)
      index += 1
    }
    var kept = index
    if overflow == .dropsOldest { kept = max(index, values.count - max(0, limit - ring.count)) }
    for value in values[kept...].reversed() { ring.prepend(value) }
    return index..<kept
  }

  /// Closes the channel; returns false if it was closed before.
  ///
  /// Claims all waiters. Their waits end when the caller wakes them; until then the senders' values belong to the
  /// caller.
  @inlinable
  mutating func close(_ cause: (any Error)?, _ woken: inout WaitQueue) -> Bool {
    let isFirst = !isClosed
    isClosed = true
    if isFirst { self.cause = cause }
    // Also after `beginCancel`, which leaves them.
    while let waiter = receivers.claimFirst() {
      endWasTold = true
      woken.append(waiter)
    }
    while let waiter = senders.claimFirst() {
      waiter.valueWaiter.pointee.isClosed = true
      woken.append(waiter)
    }
    return isFirst
  }
}
