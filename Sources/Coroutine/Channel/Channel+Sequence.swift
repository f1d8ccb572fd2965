extension Channel {
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
}

extension Channel: Sequence {
  /// Receives values one at a time in a coroutine.
  ///
  /// - Warning: It cannot throw, so it ends in the same way at a close, at a close with a cause, and at cancellation:
  ///   see ``Channel/makeIterator()``.
  public struct Iterator: IteratorProtocol, Sendable {
    @usableFromInline let channel: Channel

    @inlinable
    init(_ channel: Channel) { self.channel = channel }

    /// Receives the next value; suspends until there is one.
    ///
    /// Traps outside a coroutine, where it can neither wait nor throw.
    /// - Returns: The value; nil if the channel is closed and drained, whatever the cause, or if the coroutine is
    ///   cancelled. The next suspension then throws the cancellation error.
    @inlinable @inline(__always)
    @available(*, noasync, message: "use `for try await`")
    public mutating func next() -> sending Element? {
      guard let (carrier, job) = try? Carrier.requireJob() else {
        misuse("for-in over a channel waits, and here is no coroutine: use co_launch, for try await, or tryReceive().")
      }
      do {
        let carrier = Carrier.countWait(carrier, job)
        try job.checkCancelled()
        if let value = try channel.next(carrier, job) { return value }
        channel.noteLoopEnd(job)
        return nil
      } catch {
        channel.noteLoopEnd(job, by: error)
        return nil
      }
    }
  }

  /// Creates an iterator, for `for value in channel` in a coroutine.
  ///
  /// - Warning: The loop ends when the coroutine is cancelled, and when the channel was closed with an error, as at a
  ///   plain close: an incomplete sequence looks complete. So do `map`, `reduce`, `Array(channel)` and the other
  ///   methods of `Sequence`. If the code after the loop must know, use ``forEach(_:)``, which throws.
  ///
  /// Such a failure is not lost. The next suspension point throws a cancellation, and the next receive from the channel
  /// throws the cause. If the coroutine comes to neither, the failure goes to
  /// ``CoroutineRuntime/unhandledErrorHandler``, with the name and the launch site of the coroutine: at the end of the
  /// coroutine, or before, at a suspension point that throws nothing. A coroutine that reads ``co_isCancelled`` after
  /// the loop, and finds it true, has noticed the cancellation.
  ///
  /// Several coroutines may iterate at the same time; each value goes to one of them. See ``Iterator/next()``.
  @inlinable
  @available(*, noasync, message: "use `for try await`")
  public func makeIterator() -> Iterator { Iterator(self) }
}
