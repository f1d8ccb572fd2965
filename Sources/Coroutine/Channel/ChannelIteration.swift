extension Channel: Sequence {
  /// Receives, one value at a time, in a coroutine.
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
      guard let (turn, job) = try? Turn.requireJob() else {
        misuse("for-in over a channel waits, and here is no coroutine: use co_launch, for try await, or tryReceive().")
      }
      do {
        try job.checkCancelled()
        return try channel.next(turn, job)
      } catch {
        return nil
      }
    }
  }

  /// `for value in channel` in a coroutine: see ``Iterator/next()``.
  ///
  /// Any number may iterate; each value goes to one of them.
  @inlinable
  public func makeIterator() -> Iterator { Iterator(self) }

  /// How many values an iteration will give is never known.
  @inlinable public var underestimatedCount: Int { 0 }
}
