// Receiving. Inlinable for the reasons in Channel+Send.swift. `receive` and `next` are always
// inlined: a call costs 27 instructions, 4 % of a round trip between two coroutines.

extension Channel {
  /// Receives the next value.
  ///
  /// Suspends until there is one; waiting receivers are served first come, first served. If the coroutine is cancelled,
  /// it throws at once, even if it would not have to wait, and no value is consumed.
  /// - Returns: The value, or nil if the channel is closed and drained.
  /// - Throws: The cancellation error; the cause given to `close` once the channel is drained;
  ///   ``CoroutineError/notInCoroutine`` outside a coroutine.
  @inlinable @inline(__always)
  @available(*, noasync, message: "use `for try await`, or the async iterator's `next()`")
  public func receive() throws -> sending Element? {
    let (carrier, job) = try Carrier.beginWaiting(for: lock.id)
    guard let value = try next(carrier, job) else {
      try throwCause()
      return nil
    }
    return value
  }

  /// Receives the next value, or nil at the end, whatever the cause.
  ///
  /// Requires a job that has begun to wait for the channel, and that has checked its cancellation; throws the
  /// cancellation error only.
  @inlinable @inline(__always)
  func next(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) throws -> sending Element? {
    // Sound because the sender gave the value away, and this is its one receiver.
    nonisolated(unsafe) var storage: Element?
    try withUnsafeMutablePointer(to: &storage) { storage in
      var woken: UnsafeMutablePointer<Waiter>?
      lock.known.lock()
      if state.take(storage, &woken) {
        lock.unlock()
        if let woken { woken.wake() }
        return
      }
      if state.tellsEnd() { return lock.unlock() }
      var waiting = ValueWaiter(Waiter(job: job), storage: UnsafeMutableRawPointer(storage))
      // Delivered, or closed; after a close the storage is still empty.
      try withUnsafeMutablePointer(to: &waiting) { waiting in
        _ = try WaitQueue.park(carrier, job, .receive, for: self) { epoch in
          state.receivers.append(waiting.waiter, epoch)
          lock.unlock()
        } withdraw: {
          lock.known.lock()
          state.receivers.remove(waiting.waiter)
          lock.unlock()
        }
      }
    }
    return storage
  }

  /// Receives values one at a time and calls `body` with each, until the channel is closed and drained.
  ///
  /// ```swift
  /// try lines.forEach { line in try index(line) }
  /// print("all lines are indexed")   // reached only if all were
  /// ```
  ///
  /// Returns only if the channel was closed without a cause and every value was received. Several coroutines may
  /// iterate at the same time; each value goes to one of them. `return` in `body` continues with the next value. To
  /// stop early, throw, or loop over ``receive()``: `while let value = try channel.receive() { … }`.
  ///
  /// Suspends for each value as ``receive()`` does.
  /// - Throws: The cancellation error, the cause given to `close` once the channel is drained, or the error of `body`;
  ///   no value is lost except the one that `body` was called with. Outside a coroutine
  ///   ``CoroutineError/notInCoroutine``.
  @inlinable
  @available(*, noasync, message: "use `for try await`")
  public func forEach(_ body: (sending Element) throws -> Void) throws {
    while let value = try receive() { try body(value) }
  }

  /// Receives a value if one is buffered or held by a waiting sender.
  ///
  /// Never suspends, never throws; any thread, coroutine or not.
  @inlinable
  public func tryReceive() -> sending TryReceive<Element> {
    // Sound because the sender gave the value away, and this is its one receiver.
    nonisolated(unsafe) var storage: Element?
    let isClosed = withUnsafeMutablePointer(to: &storage) { storage in
      var woken: UnsafeMutablePointer<Waiter>?
      lock.lock()
      let found = state.take(storage, &woken)
      let isClosed = !found && state.tellsEnd()
      lock.unlock()
      if let woken { woken.wake() }
      return isClosed
    }
    if let value = storage { return .received(value) }
    return isClosed ? .closed : .empty
  }

  /// Waits for the first value as ``receive()`` does, then takes all available values, from the buffer and from waiting
  /// senders.
  ///
  /// If the coroutine is cancelled, it throws and no value is consumed.
  /// - Returns: The values in order; empty if the channel is closed and drained.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func receiveAll() throws -> sending [Element] {
    let (carrier, job) = try Carrier.beginWaiting(for: lock.id)
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
  /// If the coroutine is cancelled while it waits, it throws, and the values taken so far are put back to the front of
  /// the channel, in order, even if the channel then holds more than its capacity. Values that can no longer be
  /// received go to `onUndelivered`: those that do not fit into a `dropOldest` channel, and all of them after a
  /// receiver has been told that the channel is closed and drained. Traps on a negative count.
  /// - Returns: `count` values; fewer only if the channel is closed earlier. The next call then returns nothing or
  ///   throws as `receive` does.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func receive(count: Int) throws -> sending [Element] {
    if count < 0 { misuse("\(count) values cannot be received: ask for 0 or more.") }
    var values: [Element] = []
    do {
      repeat {
        // Looked up in each round: a wait may end on another thread.
        let (carrier, job) = try Carrier.beginWaiting(for: lock.id)
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

  /// Takes up to `most` available values, all in one critical section.
  ///
  /// The array gets its memory without the lock. Meanwhile more values may come, so each round checks again. A round at
  /// least doubles the memory, so soon it is enough.
  @inlinable
  func takeAll(_ values: inout [Element], _ most: Int) {
    var woken = WaitQueue()
    var taken = Ring<Element>(capacity: 0)
    lock.lock()
    while !state.takeRing(&taken, most) {
      let count = state.available(most)
      if count <= values.capacity - values.count {
        take(count, &values, &woken)
        break
      }
      lock.unlock()
      values.reserveCapacity(Swift.max(values.count + count, 2 * values.capacity))
      lock.lock()
    }
    lock.unlock()
    while let waiter = woken.popFirst() { waiter.wake() }
    values.reserveCapacity(values.count + taken.count)
    taken.removeAll(into: &values)
  }

  /// Takes up to `most` available values, under the lock, into an array that has memory for them.
  @inlinable
  func take(_ most: Int, _ values: inout [Element], _ woken: inout WaitQueue) {
    var storage: Element?
    withUnsafeMutablePointer(to: &storage) { storage in
      var left = most
      var waiter: UnsafeMutablePointer<Waiter>?
      while left > 0, state.take(storage, &waiter) {
        values.append(storage.take().unsafelyUnwrapped)
        left &-= 1
        if let waker = waiter { woken.append(waker) }
        waiter = nil
      }
    }
  }

  /// Puts back values that were taken and cannot be kept.
  @inlinable
  func putBack(_ values: inout [Element]) {
    var woken = WaitQueue()
    lockWithRoom(for: values.count)
    let lost = state.putBack(values, &woken)
    lock.unlock()
    // Releases this array's references first: after this, a receiver that lets go of its value holds the last reference
    // to it.
    values = Array(values[lost])
    while let waiter = woken.popFirst() { waiter.wake() }
    if let onUndelivered { for value in values { onUndelivered(value) } }
  }
}
