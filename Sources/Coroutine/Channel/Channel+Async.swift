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
  // Sound because `channel` never changes, and the storage has the owner described at the head of ValueWaiter.swift.
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
    }
    channel.lock.unlock()
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
