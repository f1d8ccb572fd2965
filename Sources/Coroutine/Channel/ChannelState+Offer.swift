// Offers that do not simply go to a receiver, or into the front segment of the ring.

extension ChannelState {
  /// Offers a value that does not fit into the front segment of the ring.
  @inlinable @inline(never)
  mutating func offerBehind(_ slot: UnsafeMutablePointer<Element?>) -> Offer {
    guard ring.total < limit else { return refuse(slot) }
    return ring.appendBehind(slot) ? .accepted : .noRoom
  }

  /// Sends to a channel that is full or closed.
  ///
  /// Before a sender waits, the last segment of the ring can hold `limit` values: so the value of a waiting sender can
  /// move up whenever there are fewer.
  @inlinable @inline(__always)
  mutating func refuse(_ slot: UnsafeMutablePointer<Element?>) -> Offer {
    if isClosed { return .closed }
    if ring.capacity < limit, overflow != .dropsNewest, ring.backCapacity < limit { return .noRoom }
    return overflow == .waits ? .full : displace(slot)
  }

  /// Whether an offer would find no room, if no receiver waits.
  @inlinable var needsSegment: Bool {
    if ring.total < limit { return ring.isFull && !ring.hasRoomBehind }
    return overflow != .dropsNewest && ring.backCapacity < limit
  }

  /// Sends to a full dropping channel.
  @inlinable @inline(never)
  mutating func displace(_ slot: UnsafeMutablePointer<Element?>) -> Offer {
    guard overflow == .dropsOldest else { return .full }
    let oldest = ring.popFirst().unsafelyUnwrapped
    append(slot)
    slot.initialize(to: oldest)
    return .accepted
  }

  /// Moves a value out of its slot and into the ring, which has room.
  @inlinable @inline(__always)
  mutating func append(_ slot: UnsafeMutablePointer<Element?>) {
    if ring.isFull {
      let isAppended = ring.appendBehind(slot)
      assert(isAppended, "the ring of a full channel has no room")
    } else {
      ring.append(slot.take().unsafelyUnwrapped)
    }
  }
}
