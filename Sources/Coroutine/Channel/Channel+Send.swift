// Sending. Inlinable, and in one piece down to the switch: as generic code of this module it would run unspecialised, and
// each frame between the caller and the switch costs a mispredicted return.

extension Channel {
  /// Sends a value: returns when it is received or buffered.
  ///
  /// Suspends while the channel is full, or as a rendezvous until a receiver comes; senders that wait are served in the
  /// order in which they came. After `close` it throws ``ChannelClosed``, also if it waited then. Cancelled, it throws
  /// at once, also if it need not have waited. Off a coroutine ``CoroutineError/notInCoroutine``. Whenever it throws, the value
  /// goes to `onUndelivered`. A full dropping channel drops a value and does not throw.
  @inlinable
  public func send(_ element: consuming Element) throws {
    var slot: Element? = element
    try withUnsafeMutablePointer(to: &slot) { slot in
      let (carrier, job) = try enter(offering: slot)
      var woken: UnsafeMutablePointer<Waiter>?
      lock.lock()
      let offer = state.offer(slot, &woken)
      if offer == .accepted {
        lock.unlock()
        if let woken { woken.wake() }
        if slot.pointee != nil { drop(slot) }
        return
      }
      if offer == .full, state.overflow == .waits { return try waitToSend(slot, carrier, job) }
      lock.unlock()
      drop(slot)
      if offer == .closed { throw ChannelClosed(cause: cause) }
    }
  }

  /// The turn and job of a sender; where there is none, or where it is cancelled, the value has been offered in vain.
  @inlinable @inline(__always)
  func enter(offering slot: UnsafeMutablePointer<Element?>) throws -> (UnsafeMutablePointer<Carrier>, JobRef) {
    do {
      let (carrier, job) = try Carrier.beginWaiting()
      return (carrier, job)
    } catch {
      drop(slot)
      throw error
    }
  }

  /// Waits until the value has been taken.
  ///
  /// Called under the lock, which it leaves.
  @inlinable @inline(__always)
  func waitToSend(_ slot: UnsafeMutablePointer<Element?>, _ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) throws {
    var waiting = ValueWaiter(Waiter(job: job), slot: UnsafeMutableRawPointer(slot))
    try withUnsafeMutablePointer(to: &waiting) { waiting in
      try WaitQueue.park(carrier, job, .send, for: self) { epoch in
        state.senders.append(waiting.waiter, epoch)
        lock.unlock()
      } withdraw: {
        lock.lock()
        state.senders.remove(waiting.waiter)
        lock.unlock()
        // The claim was the cancellation's, so nobody has touched the value.
        drop(slot)
      }
      // Whoever closed the channel has taken the value to the hook.
      if waiting.pointee.isClosed { throw ChannelClosed(cause: cause) }
    }
  }

  /// Sends a value if that needs no waiting: a receiver waits or there is room.
  ///
  /// Refused, the value stays the caller's. A full `dropNewest` channel refuses; a full `dropOldest` channel takes it
  /// and drops its oldest. Never suspends, never throws; any thread, coroutine or not.
  @inlinable
  public func trySend(_ element: consuming Element) -> TrySend {
    var slot: Element? = element
    return withUnsafeMutablePointer(to: &slot) { slot in
      var woken: UnsafeMutablePointer<Waiter>?
      lock.lock()
      let offer = state.offer(slot, &woken)
      lock.unlock()
      switch offer {
      case .accepted:
        if let woken { woken.wake() }
        if slot.pointee != nil { drop(slot) }
        return .sent
      case .full: return .full
      case .closed: return .closed
      }
    }
  }
}
