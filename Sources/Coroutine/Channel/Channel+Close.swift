extension Channel {
  /// Closes the channel.
  ///
  /// Buffered values stay receivable. Receivers after them get nil, or `cause` thrown if there is one. Waiting senders
  /// and all later sends throw ``ChannelClosedError``, which carries the cause; before a waiting sender throws, its
  /// value has been passed to `onUndelivered`. Never suspends; any thread, coroutine or not.
  /// - Returns: True for the first close, false for all others.
  @discardableResult
  public func close(_ cause: (any Error)? = nil) -> Bool { end(cause, dropsBuffered: false) }

  /// Closes the channel, if it is open, and passes all buffered values to `onUndelivered`, also if it was closed
  /// before.
  ///
  /// The effect on waiters and on later calls is that of ``close(_:)``. Never suspends; any thread, coroutine or not.
  public func cancel(_ cause: (any Error)? = nil) { end(cause, dropsBuffered: true) }

  @discardableResult
  private func end(_ cause: (any Error)?, dropsBuffered: Bool) -> Bool {
    var woken = WaitQueue()
    var dropped = Ring<Element>(capacity: 0)
    lock.lock()
    let isFirst = state.close(cause, &woken)
    if dropsBuffered {
      state.isCancelled = true
      swap(&dropped, &state.ring)
    }
    lock.unlock()
    // Foreign code runs from here on.
    while dropped.count > 0 { lose(dropped.removeFirst()) }
    wake(woken)
    return isFirst
  }

  /// Closes the channel, and returns what is left of `cancel`: to drop the values, which runs users' code, and to wake
  /// the waiters.
  ///
  /// Until then the waiters can still be cancelled.
  func beginCancel() -> @Sendable () -> Void {
    lock.withLock { state.isClosed = true }
    return { self.cancel() }
  }

  /// Drops the values of the senders among the waiters that a close has claimed, and wakes all.
  ///
  /// Until then they stay linked, and this thread owns the senders' storage. So a sender that sees its send fail finds
  /// that the hook has received the value.
  private func wake(_ claimed: WaitQueue) {
    var woken = claimed
    var waiter = woken.first
    while let current = waiter {
      waiter = current.pointee.next
      if current.pointee.job != nil, current.valueWaiter.pointee.isClosed { drop(current.storage(of: Element.self)) }
    }
    while let waiter = woken.popFirst() { waiter.wake() }
  }

  private func lose(_ value: consuming Element) { onUndelivered?(value) }
}
