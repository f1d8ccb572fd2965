internal import CCoroutine

extension Channel: AsyncSequence {
  /// Receives values one at a time in async code.
  public struct AsyncIterator: AsyncIteratorProtocol {
    fileprivate let channel: Channel

    /// Receives the next value.
    ///
    /// Suspends the Task until there is one, in the same queue as waiting coroutines. If the Task is cancelled, it
    /// throws `CancellationError` and no value is lost.
    /// - Returns: The value, or nil if the channel is closed and drained.
    /// - Throws: `CancellationError`, or the cause given to `close` once the channel is drained.
    public mutating func next() async throws -> Element? {
      try Task.checkCancellation()
      // Fast path: if a value is there, it neither waits nor allocates.
      if case .received(let value) = channel.tryReceive() { return value }
      return try await AsyncReceiver(channel).receive()
    }
  }

  /// Creates an iterator, for `for try await value in channel` in async code: see ``AsyncIterator/next()``.
  public func makeAsyncIterator() -> AsyncIterator { AsyncIterator(channel: self) }
}

/// One receive by async code: the object that is queued in the channel where a coroutine has its waiter.
///
/// One object per receive.
///
///   IDLE --- linked ---> WAITING --- claimed by a sender or a close ---> ENDED
///     |                     +--- the Task is cancelled, unlinked ------> ENDED
///     +--- a value or the end is there, or the Task is cancelled already ---> ENDED
///
/// All transitions happen under the channel's lock. The thread that ends the receive fires it once, after leaving the
/// lock.
@usableFromInline
final class AsyncReceiver<Element: Sendable>: WaitCallback, @unchecked Sendable {
  // Sound because the flags are accessed under the channel's lock, the slot has the owner described at the head of
  // ValueWaiter.swift, and the continuation is set before the receiver is linked.
  private let channel: Channel<Element>
  @usableFromInline let slot: UnsafeMutablePointer<Element?>
  @exclusivity(unchecked) private var isCancelled = false
  @exclusivity(unchecked) private var continuation: UnsafeContinuation<Void, Never>?

  init(_ channel: Channel<Element>) {
    self.channel = channel
    slot = .allocate(capacity: 1)
    slot.initialize(to: nil)
    super.init()
  }

  deinit {
    slot.deinitialize(count: 1)
    slot.deallocate()
  }

  func receive() async throws -> Element? {
    await withTaskCancellationHandler {
      await withUnsafeContinuation { continuation in
        self.continuation = continuation
        if !link() { resume() }
      }
    } onCancel: {
      withdraw()
    }
    cco_observe(address)
    if let value = slot.take() { return value }
    let wasCancelled = channel.lock.withLock { isCancelled }
    if wasCancelled { throw CancellationError() }
    try channel.throwCause()
    return nil
  }

  /// Links the receiver into the queue; returns false if the receive has ended already.
  private func link() -> Bool {
    var woken: UnsafeMutablePointer<Waiter>?
    channel.lock.lock()
    let isOver = isCancelled || channel.state.take(slot, &woken) || channel.state.tellsEnd()
    if !isOver {
      _ = Unmanaged.passRetained(self as WaitCallback)
      channel.state.receivers.append(waiter)
    }
    channel.lock.unlock()
    woken?.wake()
    return !isOver
  }

  /// Unlinks the receiver of a cancelled Task, unless the receive has been claimed.
  private func withdraw() {
    channel.lock.lock()
    // Check the reason first: only the reason is always written under the lock. The links of a claimed waiter belong to
    // the claiming thread, which may hold it in a list of its own and unlink it without the lock.
    let isClaimed = waiter.pointee.reason == 0
    let wasWaiting = !isClaimed && waiter.pointee.isLinked
    if wasWaiting { channel.state.receivers.remove(waiter) }
    if !isClaimed { isCancelled = true }
    channel.lock.unlock()
    if wasWaiting {
      fire()
      Unmanaged.passUnretained(self as WaitCallback).release()
    }
  }

  @usableFromInline override func fire() { resume() }

  private func resume() {
    cco_publish(address)
    cco_unrecorded_begin()
    continuation?.resume()
    cco_unrecorded_end()
  }

  /// ThreadSanitizer does not see that resuming a continuation happens before the code after the await, so this address
  /// tells it.
  private var address: UnsafeRawPointer { UnsafeRawPointer(Unmanaged.passUnretained(self).toOpaque()) }
}
