extension Channel {
  /// Closes the channel.
  ///
  /// True once, false ever after.
  ///
  /// What is buffered stays receivable; after that receivers get nil, or `cause` thrown at them where there is one. Senders that
  /// wait fail with ``ChannelClosed``, which carries the cause, as does every later send; their values have gone to
  /// `onUndelivered` before they do. Never suspends; any thread, coroutine or not.
  @discardableResult
  public func close(_ cause: (any Error)? = nil) -> Bool { end(cause, dropsBuffered: false) }

  /// Closes the channel, if it is open, and drops what is buffered through `onUndelivered`, also if it was closed
  /// before.
  ///
  /// For those who wait, and for what comes after, as ``close(_:)``. Never suspends; any thread, coroutine or not.
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
    // Foreign code from here on. Those who waited are claimed and not yet woken, so they stay where they are, and the
    // senders' slots are ours: whoever sees its send fail finds that the hook has had the value.
    while dropped.count > 0 { lose(dropped.removeFirst()) }
    var waiter = woken.first
    while let current = waiter {
      waiter = current.pointee.next
      if current.pointee.job != nil, current.valueWaiter.pointee.isClosed { drop(current.slot(of: Element.self)) }
    }
    while let waiter = woken.popFirst() { waiter.wake() }
    return isFirst
  }

  private func lose(_ value: consuming Element) { onUndelivered?(value) }
}
