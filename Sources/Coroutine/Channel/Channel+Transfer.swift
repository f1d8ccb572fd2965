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
  /// A `rendezvous` channel has no room. A signal that must not be lost while the receiver is busy needs
  /// `Channel<Void>(.bounded(1))`, or a ``FairSemaphore`` of no permits.
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

// MARK: - Receiving

// Receiving. Inlinable for the reasons above. `receive` and `next` are always
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
        unlockGivingBack()
        if let woken { woken.wake() }
        return
      }
      if state.tellsEnd() { return lock.unlock() }
      var waiting = ValueWaiter(Waiter(job: job), storage: UnsafeMutableRawPointer(storage))
      // Delivered, or closed; after a close the storage is still empty.
      try withUnsafeMutablePointer(to: &waiting) { waiting in
        _ = try WaitQueue.park(carrier, job, .receive, for: self) { epoch in
          state.receivers.append(waiting.waiter, epoch)
          state.lastReceiver = job.ownerWord
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
      unlockGivingBack()
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

  /// Receives up to `count` values: returns when it has them, when `time` has passed, or at the end of the channel.
  ///
  /// ```swift
  /// while let lines = try log.receive(upTo: 500, within: .seconds(1)) {
  ///   if !lines.isEmpty { try store(lines) }
  /// }
  /// ```
  ///
  /// The time counts from the call; with no time left it takes what is there. Under a deadline, `receive(count:)` would
  /// put its values back, beyond the capacity of the channel; this one returns them.
  ///
  /// Suspends as ``receive()`` does, until the time has passed at the latest. If the coroutine is cancelled, it throws,
  /// and the values taken so far are put back, as by ``receive(count:)``. Traps on a negative count.
  /// - Returns: The values in order, none if none came in time; nil if the channel is closed and drained.
  /// - Throws: The cancellation error; the cause given to `close` once the channel is drained;
  ///   ``CoroutineError/notInCoroutine`` outside a coroutine.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func receive(upTo count: Int, within time: Duration) throws -> sending [Element]? {
    if count < 0 { misuse("\(count) values cannot be received: ask for 0 or more.") }
    _ = try Carrier.beginWaiting(for: lock.id)
    // Sound because the senders gave the values away, and this is their one receiver.
    nonisolated(unsafe) var values: [Element] = []
    takeAll(&values, count)
    let end = co_now.advanced(by: time)
    do {
      while values.count < count {
        // Sound for the same reason.
        nonisolated(unsafe) var next: Element?
        let isEnd: Bool? = try co_select(biased: true) {
          onReceive { value in
            next = value
            return next == nil
          }
          .onTimeout(co_now.duration(to: end)) { nil }
        }
        guard let isEnd else { break }
        if isEnd { return values.isEmpty ? nil : values }
        if let value = next.take() { values.append(value) }
        takeAll(&values, count &- values.count)
      }
    } catch {
      // Without a cancellation it is the cause of the end, which the next call throws.
      if !values.isEmpty, !co_isCancelled { return values }
      putBack(&values)
      throw error
    }
    return values
  }

  /// Leaves the lock after a receive, and frees the memory of a large ring that it has emptied (ChannelState, 7).
  ///
  /// One look more at a count that the receive has just written.
  @inlinable @inline(__always)
  func unlockGivingBack() {
    if state.ring.count == 0, state.ring.isLarge { return giveBackUnlocking() }
    lock.unlock()
  }

  @usableFromInline @inline(never)
  func giveBackUnlocking() {
    var old = Ring<Element>(capacity: 0)
    if state.senders.first == nil {
      old.continueCounting(after: state.ring, 0)
      swap(&old, &state.ring)
    }
    lock.unlock()
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
    unlockGivingBack()
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

/// Runs `body` for each value of a channel in a coroutine, at most `limit` at the same time, and returns the results in
/// the order of the values.
///
/// As ``co_map(_:limit:name:file:line:_:)-(Sequence,_,_,_,_,_)`` over a sequence. The caller receives a value when
/// there is room for it, until the channel is closed and drained.
/// - Throws: As there; the cause given to `close` once the channel is drained.
@available(*, noasync, message: "use `withThrowingTaskGroup`, or await the `value` of a coroutine that does this")
public func co_map<Element: Sendable, Output: Sendable>(
  _ channel: Channel<Element>,
  limit: Int,
  name: String? = nil,
  file: StaticString = #fileID,
  line: UInt = #line,
  _ body: @escaping @Sendable (Element) throws -> Output
) throws -> [Output] {
  try mapElements(limit, name, file, line, body) { try channel.receive() }
}

// MARK: - The end

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

// MARK: - Waiters

extension UnsafeMutablePointer<Waiter> {
  /// The address of the value that a channel's waiter sends or receives, for every kind of waiter.
  @inlinable @inline(__always)
  func storage<Element>(of type: Element.Type) -> UnsafeMutablePointer<Element?> {
    if pointee.job == nil { return callbackSlot(of: type) }
    return valueWaiter.pointee.storage.assumingMemoryBound(to: Element?.self)
  }

  @inlinable @inline(never)
  func callbackSlot<Element>(of type: Element.Type) -> UnsafeMutablePointer<Element?> {
    pointee.callback._withUnsafeGuaranteedRef {
      unsafeDowncast($0, to: AsyncReceiver<Element>.self).storage
    }
  }
}

extension UnsafeMutablePointer {
  /// Moves the value out of the memory and leaves nil there.
  @inlinable @inline(__always)
  func take<Value>() -> sending Value? where Pointee == Value? {
    // Sound because the sender gave the value away, and the storage has one owner (Channel.swift, invariant 4).
    nonisolated(unsafe) let value = pointee.take()
    return value
  }
}

// MARK: - Async code

extension Channel: AsyncSequence {
  /// Receives values one at a time in async code.
  public struct AsyncIterator: AsyncIteratorProtocol, Sendable {
    fileprivate let channel: Channel

    /// Receives the next value.
    ///
    /// Suspends the Task until there is one, in the same queue as waiting coroutines. If the Task is cancelled, it
    /// throws `CancellationError` and no value is lost.
    /// - Returns: The value, or nil if the channel is closed and drained.
    /// - Throws: `CancellationError`, or the cause given to `close` once the channel is drained.
    public mutating func next() async throws -> sending Element? {
      try Task.checkCancellation()
      // Fast path: if a value is there, it neither waits nor allocates.
      if case .received(let value) = channel.tryReceive() { return value }
      return try await AsyncReceiver(channel).receive()
    }
  }

  /// Creates an iterator, for `for try await value in channel` in async code: see ``AsyncIterator/next()``.
  public func makeAsyncIterator() -> AsyncIterator { AsyncIterator(channel: self) }
}

/// One receive by async code, once: the Task waits in the channel's queue, where a coroutine has its waiter.
@usableFromInline
final class AsyncReceiver<Element>: TaskWait, @unchecked Sendable {
  // Sound because `channel` never changes, and the storage has the owner that ValueWaiter describes.
  private let channel: Channel<Element>
  @usableFromInline let storage: UnsafeMutablePointer<Element?>

  init(_ channel: Channel<Element>) {
    self.channel = channel
    storage = .allocate(capacity: 1)
    storage.initialize(to: nil)
    super.init()
  }

  deinit {
    storage.deinitialize(count: 1)
    storage.deallocate()
  }

  func receive() async throws -> sending Element? {
    await wait()
    if let value = storage.take() { return value }
    // A receive that was claimed before the cancellation has ended by a close.
    if isCancelled, !isClaimed { throw CancellationError() }
    try channel.throwCause()
    return nil
  }

  override func link() -> Bool {
    var woken: UnsafeMutablePointer<Waiter>?
    channel.lock.lock()
    let isOver = isCancelled || channel.state.take(storage, &woken) || channel.state.tellsEnd()
    if !isOver {
      _ = Unmanaged.passRetained(self as WaitCallback)
      channel.state.receivers.append(waiter)
      channel.state.lastReceiver = OwnerNumber.ofTask
    }
    channel.unlockGivingBack()
    woken?.wake()
    return !isOver
  }

  override func leave() -> Bool {
    channel.lock.lock()
    // Check the reason first: only the reason is always written under the lock. The links of a claimed waiter belong to
    // the claiming thread, which may hold it in a list of its own and unlink it without the lock.
    let isWaiting = !isClaimed && waiter.pointee.isLinked
    if isWaiting { channel.state.receivers.remove(waiter) }
    channel.lock.unlock()
    if isWaiting { Unmanaged.passUnretained(self as WaitCallback).release() }
    return isWaiting
  }

  /// Whether a sender or a close has ended the receive; called under the lock, or when the wait is over.
  private var isClaimed: Bool { waiter.pointee.reason == 0 }
}

// MARK: - Sends as functions

// `send` and `trySend` as functions, as in `values.forEach(channel.send)`. Swift 6.3 refuses a function with a
// `sending` parameter where one without is wanted, also if the values are Sendable. No call chooses these: they are
// disfavoured.

extension Channel where Element: Sendable {
  /// Sends a value as ``send(_:)`` does, for programs that pass it as a function.
  @inlinable @_disfavoredOverload @_documentation(visibility: internal)
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func send(_ element: consuming Element) throws { try send(element) }

  /// Sends a value as ``trySend(_:)`` does, for programs that pass it as a function.
  @inlinable @_disfavoredOverload @_documentation(visibility: internal)
  public func trySend(_ element: consuming Element) -> TrySend { trySend(element) }
}
