internal import CCoroutine

extension Channel: AsyncSequence {
  /// Receives, one value at a time, in async code.
  public struct AsyncIterator: AsyncIteratorProtocol {
    fileprivate let channel: Channel

    /// The next value; suspends the Task until there is one, in the queue of those that wait, coroutines included.
    ///
    /// Nil when the channel is closed and drained; its cause is thrown. When the Task is cancelled it throws
    /// `CancellationError`, and no value is lost.
    public mutating func next() async throws -> Element? {
      try Task.checkCancellation()
      // Nobody is asked to wait, and nothing allocated, where a value is there.
      if case .received(let value) = channel.tryReceive() { return value }
      return try await AsyncReceiver(channel).receive()
    }
  }

  /// `for try await value in channel` in async code: see ``AsyncIterator/next()``.
  public func makeAsyncIterator() -> AsyncIterator { AsyncIterator(channel: self) }
}

/// One receive by async code: what is queued in the channel in place of a job's node.
///
/// One object a receive.
///
///   IDLE --- linked ---> WAITING --- claimed by a sender or a close ---> ENDED
///     |                     +--- the Task is cancelled, unlinked ------> ENDED
///     +--- a value or the end is there, or the Task is cancelled already ---> ENDED
///
/// All under the channel's lock; whoever ends it fires it once, after leaving the lock.
@usableFromInline
final class AsyncReceiver<Element: Sendable>: WaitCallback, @unchecked Sendable {
  // Sound because the flags are under the channel's lock, the slot belongs to whoever the head of ValueWaiter.swift says,
  // and the continuation is set before the receiver is linked.
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

  /// False: there is nothing to wait for.
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

  /// The Task is cancelled: takes the receiver out of the queue, unless somebody has claimed it.
  private func withdraw() {
    channel.lock.lock()
    // The reason first: it alone is written under the lock only. A claimed node's links are the claimer's, who may have it in
    // a list of its own and takes it out of that without the lock.
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

  /// ThreadSanitizer does not see that resuming a continuation happens before what follows the await, so it is told.
  private var address: UnsafeRawPointer { UnsafeRawPointer(Unmanaged.passUnretained(self).toOpaque()) }
}
