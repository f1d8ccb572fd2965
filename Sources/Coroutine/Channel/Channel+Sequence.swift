extension Channel {
  /// Receives values one at a time and calls `body` with each, until the channel is closed and drained.
  ///
  /// ```swift
  /// try lines.forEach { line in try index(line) }
  /// print("all lines are indexed")   // reached only if all were
  /// ```
  ///
  /// Returns only if every value until a close without a cause was received. Any number of coroutines may do so; each
  /// value goes to one of them. `return` in `body` goes on with the next value; to stop early, throw, or loop over
  /// ``receive()``: `while let value = try channel.receive() { … }`.
  ///
  /// Suspends for each value as ``receive()`` does.
  /// - Throws: What cancellation throws, what the channel was closed with once it is drained, or what `body` throws; no
  ///   value is lost but the one that `body` was called with. Off a coroutine ``CoroutineError/notInCoroutine``.
  @inlinable
  public func forEach(_ body: (Element) throws -> Void) throws {
    while let value = try receive() { try body(value) }
  }
}

extension Channel: Sequence {
  /// Receives, one value at a time, in a coroutine.
  ///
  /// - Warning: It cannot throw, so it ends in the same way at a close, at a close with a cause, and at cancellation:
  ///   see ``Channel/makeIterator()``.
  public struct Iterator: IteratorProtocol {
    @usableFromInline let channel: Channel

    @inlinable
    init(_ channel: Channel) { self.channel = channel }

    /// The next value; suspends until there is one.
    ///
    /// Nil when the channel is closed and drained, whatever the cause, and when the coroutine is cancelled, which the
    /// next suspension then throws. Traps off a coroutine, where it cannot wait and cannot throw.
    @inlinable
    public mutating func next() -> Element? {
      guard let (carrier, job) = try? Carrier.requireJob() else {
        misuse("for-in over a channel waits, and here is no coroutine: use co_launch, for try await, or tryReceive().")
      }
      do {
        let carrier = Carrier.countWait(carrier, job)
        try job.checkCancelled()
        return try channel.next(carrier, job)
      } catch {
        return nil
      }
    }
  }

  /// Lets `for value in channel` receive, in a coroutine.
  ///
  /// - Warning: The loop ends silently when the coroutine is cancelled and when the channel was closed with an error,
  ///   as it ends at a plain close: what was received until then looks like all there was. So do `map`, `reduce`,
  ///   `Array(channel)` and the other methods of `Sequence`. Where a part must not pass for the whole, use
  ///   ``forEach(_:)``, which throws.
  ///
  /// Any number may iterate; each value goes to one of them. See ``Iterator/next()``.
  @inlinable
  public func makeIterator() -> Iterator { Iterator(self) }

  /// How many values an iteration will give is never known.
  @inlinable public var underestimatedCount: Int { 0 }
}
