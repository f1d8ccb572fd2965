// Receiving. Inlinable for the reasons given in Channel+Send.swift.

extension Channel {
  /// Receives the next value; nil when the channel is closed and drained, or, if it was closed with a cause, throws that.
  ///
  /// Suspends until there is one; receivers that wait are served in the order in which they came. Cancelled, it throws at
  /// once, also if it need not have waited, and no value is lost: either it returns one or the value is still there. Off a
  /// coroutine ``CoroutineError/notInCoroutine``.
  @inlinable
  public func receive() throws -> Element? {
    let (carrier, job) = try Carrier.beginWaiting()
    guard let value = try next(carrier, job) else {
      try throwCause()
      return nil
    }
    return value
  }

  /// The next value, or nil at the end, whatever the cause.
  ///
  /// For a job that has looked at its cancellation; throws nothing else.
  @inlinable @inline(__always)
  func next(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) throws -> Element? {
    var slot: Element?
    try withUnsafeMutablePointer(to: &slot) { slot in
      var woken: UnsafeMutablePointer<Waiter>?
      lock.lock()
      if state.take(slot, &woken) {
        lock.unlock()
        if let woken { woken.wake() }
        return
      }
      if state.tellsEnd() { return lock.unlock() }
      var waiting = ValueWaiter(Waiter(job: job), slot: UnsafeMutableRawPointer(slot))
      // Delivered, or closed, and then the slot is still empty.
      try withUnsafeMutablePointer(to: &waiting) { waiting in
        _ = try WaitQueue.park(carrier, job, .receive, for: self) { epoch in
          state.receivers.append(waiting.waiter, epoch)
          lock.unlock()
        } withdraw: {
          lock.lock()
          state.receivers.remove(waiting.waiter)
          lock.unlock()
        }
      }
    }
    return slot
  }

  /// Receives a value if there is one: buffered, or held by a sender that waits.
  ///
  /// Never suspends, never throws; any thread, coroutine or not.
  @inlinable
  public func tryReceive() -> TryReceive<Element> {
    var slot: Element?
    let isClosed = withUnsafeMutablePointer(to: &slot) { slot in
      var woken: UnsafeMutablePointer<Waiter>?
      lock.lock()
      let found = state.take(slot, &woken)
      let isClosed = !found && state.tellsEnd()
      lock.unlock()
      if let woken { woken.wake() }
      return isClosed
    }
    if let value = slot { return .received(value) }
    return isClosed ? .closed : .empty
  }

  /// Waits for the first value as ``receive()`` does, then takes all that is there, from the buffer and from senders
  /// that wait.
  ///
  /// Empty when the channel is closed and drained. Cancelled, it throws and has taken nothing.
  @inlinable
  public func receiveAll() throws -> [Element] {
    let (carrier, job) = try Carrier.beginWaiting()
    guard let first = try next(carrier, job) else {
      try throwCause()
      return []
    }
    var values = [first]
    takeAll(&values, .max)
    return values
  }

  /// Receives `count` values, waiting for each as ``receive()`` does.
  ///
  /// Fewer only where the channel is closed before: then what there was, and on the next call what `receive` would say.
  /// Cancelled while it waits it throws, and what it had taken is at the front of the channel again, in order, also if that
  /// then holds more than its capacity. What nobody can be given any more goes to `onUndelivered`: what no longer fits into
  /// a channel that drops its oldest, and all of it once a receiver has been told that the channel is closed and drained.
  /// Traps on a negative count.
  @inlinable
  public func receive(count: Int) throws -> [Element] {
    if count < 0 { misuse("\(count) values cannot be received: ask for 0 or more.") }
    var values: [Element] = []
    do {
      repeat {
        // Read anew each time: a wait may end on another thread.
        let (carrier, job) = try Carrier.beginWaiting()
        takeAll(&values, count &- values.count)
        guard values.count < count else { break }
        guard let value = try next(carrier, job) else {
          if values.isEmpty { try throwCause() }
          break
        }
        values.append(value)
      } while values.count < count
    } catch {
      putBack(&values)
      throw error
    }
    return values
  }

  /// Takes up to `most` values that are there.
  @inlinable
  func takeAll(_ values: inout [Element], _ most: Int) {
    var left = most
    var slot: Element?
    var woken = WaitQueue()
    var taken = Ring<Element>(capacity: 0)
    lock.lock()
    let isTaken = state.takeRing(&taken, most)
    let count = isTaken ? taken.count : Swift.min(most, state.ring.count)
    lock.unlock()
    // Room for what is there now. Growing under the lock remains possible, and is rare: an array grows by what it holds.
    values.reserveCapacity(values.count + count)
    if isTaken { return taken.removeAll(into: &values) }
    withUnsafeMutablePointer(to: &slot) { slot in
      lock.lock()
      var waiter: UnsafeMutablePointer<Waiter>?
      while left > 0, state.take(slot, &waiter) {
        values.append(slot.take().unsafelyUnwrapped)
        left &-= 1
        if let waker = waiter { woken.append(waker) }
        waiter = nil
      }
      lock.unlock()
    }
    while let waiter = woken.popFirst() { waiter.wake() }
  }

  /// Gives values back that were taken and cannot be kept.
  @inlinable
  func putBack(_ values: inout [Element]) {
    var woken = WaitQueue()
    lock.lock()
    let lost = state.putBack(values, &woken)
    lock.unlock()
    // What is given to others is held by them alone before they can let go of it.
    values = Array(values[lost])
    while let waiter = woken.popFirst() { waiter.wake() }
    if let onUndelivered { for value in values { onUndelivered(value) } }
  }
}
