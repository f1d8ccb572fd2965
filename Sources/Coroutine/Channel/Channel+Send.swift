// Sending. Inlinable, and one function down to the switch: generic code of this module would run unspecialised in the
// client, and each frame between the caller and the switch costs a mispredicted return.

extension Channel {
  /// Sends a value; returns when it is received or buffered.
  ///
  /// Suspends while the channel is full, or, for a rendezvous channel, until a receiver comes. Waiting senders are
  /// served first come, first served. A full dropping channel drops a value and does not throw. If the coroutine is
  /// cancelled, it throws at once, even if it would not have to wait.
  /// - Throws: The cancellation error; ``ChannelClosedError`` after `close`, also if the close comes while it waits;
  ///   ``CoroutineError/notInCoroutine`` outside a coroutine. Whenever it throws, the value goes to `onUndelivered`.
  @inlinable @inline(__always)
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func send(_ element: consuming sending Element) throws {
    var storage: Element? = element
    try withUnsafeMutablePointer(to: &storage) { storage in
      let (carrier, job) = try enter(offering: storage)
      var woken: UnsafeMutablePointer<Waiter>?
      lock.known.lock()
      let offer = offer(storage, &woken)
      if offer == .accepted {
        lock.unlock()
        if let woken { woken.wake() }
        if storage.pointee != nil { drop(storage) }
        return
      }
      if offer == .full, state.overflow == .waits { return try waitToSend(storage, carrier, job) }
      lock.unlock()
      drop(storage)
      if offer == .closed { throw ChannelClosedError(cause: cause) }
    }
  }

  /// Returns the sender's carrier and job.
  ///
  /// If there is no job, or if it is cancelled, the value goes to `onUndelivered`.
  @inlinable @inline(__always)
  func enter(offering storage: UnsafeMutablePointer<Element?>) throws -> (UnsafeMutablePointer<Carrier>, JobRef) {
    do {
      let (carrier, job) = try Carrier.beginWaiting(for: lock.id)
      return (carrier, job)
    } catch {
      drop(storage)
      throw error
    }
  }

  /// Waits until the value has been taken.
  ///
  /// Called under the lock, which it leaves.
  @inlinable @inline(__always)
  func waitToSend(
    _ storage: UnsafeMutablePointer<Element?>,
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef
  ) throws {
    var waiting = ValueWaiter(Waiter(job: job), storage: UnsafeMutableRawPointer(storage))
    try withUnsafeMutablePointer(to: &waiting) { waiting in
      try WaitQueue.park(carrier, job, .send, for: self) { epoch in
        state.senders.append(waiting.waiter, epoch)
        lock.unlock()
      } withdraw: {
        lock.known.lock()
        state.senders.remove(waiting.waiter)
        lock.unlock()
        // The cancellation claimed the wait, so no receiver has touched the value.
        drop(storage)
      }
      // The thread that closed the channel has passed the value to the hook.
      if waiting.pointee.isClosed { throw ChannelClosedError(cause: cause) }
    }
  }

  /// Sends a value if it can do so without waiting: if a receiver waits or there is room.
  ///
  /// A refused value stays with the caller. A full `dropNewest` channel refuses; a full `dropOldest` channel accepts
  /// the value and drops its oldest. Never suspends, never throws; any thread, coroutine or not.
  @inlinable
  public func trySend(_ element: consuming sending Element) -> TrySend {
    var storage: Element? = element
    return withUnsafeMutablePointer(to: &storage) { storage in
      var woken: UnsafeMutablePointer<Waiter>?
      lock.lock()
      let offer = offer(storage, &woken)
      lock.unlock()
      guard offer == .accepted else { return offer == .full ? .full : .closed }
      if let woken { woken.wake() }
      if storage.pointee != nil { drop(storage) }
      return .sent
    }
  }

  /// Offers a value, and makes room for it in the memory of the ring if there is none; the result is never `noRoom`.
  ///
  /// Called under the lock, which it leaves and takes again to make room.
  @inlinable @inline(__always)
  func offer(
    _ storage: UnsafeMutablePointer<Element?>,
    _ woken: inout UnsafeMutablePointer<Waiter>?
  ) -> ChannelState<Element>.Offer {
    let offer = state.offer(storage, &woken)
    if offer != .noRoom { return offer }
    let second: ChannelState<Element>.Offer
    (second, woken) = offerWithRoom(storage)
    return second
  }

  /// Returns the waiter that was claimed, and takes no pointer to it: else every send would keep it in memory.
  @inlinable @inline(never)
  func offerWithRoom(
    _ storage: UnsafeMutablePointer<Element?>
  ) -> (ChannelState<Element>.Offer, UnsafeMutablePointer<Waiter>?) {
    lock.unlock()
    lockWithRoom(for: 1)
    var woken: UnsafeMutablePointer<Waiter>?
    let offer = state.offer(storage, &woken)
    return (offer, woken)
  }
}
