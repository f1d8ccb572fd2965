/// A value that changes, and that coroutines wait on: each receiver sees the newest value, not each change.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/BroadcastSnippets.swift -->
/// ```swift
/// let connections = Watch(0)
/// co_launch { try connections.update { $0 += 1 } }
/// let enough = try connections.wait { $0 > 0 }
/// ```
///
/// ``value`` is the newest value, for any code. ``wait(until:)`` waits until it is as wanted. A subscription receives
/// the value of the moment first, and then the newest value each time it has changed; changes in between are passed
/// over. So a slow receiver costs nothing and is never late by more than one value. Where each value counts, use a
/// ``Broadcast``.
///
/// A send of an equal value counts as a change, because values need not be Equatable. All but ``wait(until:)`` never
/// suspend, and may be called on any thread, by coroutines or other code.
public final class Watch<Value: Sendable>: Sendable {
  /// The state, invariants and races are those of Broadcast.swift.
  private let source: Broadcast<Value>

  /// Creates an open watch with its first value.
  public init(_ value: Value) { source = Broadcast(limit: 1, newest: value) }

  /// Gives the watch a name, which dumps show: `Watch<Int> "connections" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The watch.
  @discardableResult
  public func named(_ name: String) -> Watch {
    source.named(name)
    return self
  }

  /// The newest value; after a close it is the last one.
  ///
  /// Never suspends; any thread.
  public var value: Value { source.newest.element }

  /// Replaces the value.
  ///
  /// Receivers that wait are woken, and run later. Never suspends; any thread. Takes time in proportion to the
  /// receivers that wait.
  /// - Throws: ``ChannelClosedError`` after `close`, with its cause; the value is unchanged.
  public func send(_ value: Value) throws { try source.send(value) }

  /// Replaces the value by what `change` makes of it, as one step: no other change comes in between.
  ///
  /// `change` gets a copy, without a lock. It is called again, with the newer value, if another change has come first,
  /// so it should have no other effects. If it throws, the value is unchanged. Never suspends by itself; any thread.
  /// - Returns: The result of the last call of `change`.
  /// - Throws: The error of `change`; ``ChannelClosedError`` after `close`, with its cause.
  @discardableResult
  public func update<Output>(_ change: (inout Value) throws -> Output) throws -> Output {
    while true {
      var (value, version) = source.newest
      let output = try change(&value)
      guard let count = source.publish(value, replacing: version) else { throw ChannelClosedError(cause: source.cause) }
      if count >= 0 { return output }
    }
  }

  /// Waits until the value fulfils `predicate`, and returns it.
  ///
  /// `predicate` is called in the calling coroutine, without a lock, with the value of the moment and with newer ones;
  /// values that others replace meanwhile are passed over. Suspends until it is true; a send, an update or a close
  /// resumes the coroutine. If the coroutine is cancelled, before or during the wait, it throws at once.
  /// - Throws: The error of `predicate`; the cancellation error; if the watch is closed and the last value is not as
  ///   wanted, the cause given to `close`, or ``ChannelClosedError`` without one; ``CoroutineError/notInCoroutine``
  ///   outside a coroutine.
  @available(*, noasync, message: "use `for try await` over `subscribe()`")
  public func wait(until predicate: (Value) throws -> Bool) throws -> Value {
    let values = subscribe()
    while let value = try values.receive() { if try predicate(value) { return value } }
    throw ChannelClosedError()
  }

  /// Subscribes: the first receive gets the value of the moment, and each later one the newest value after a change.
  ///
  /// The subscription ends when its last reference is released. After a close it receives the last value if it has not
  /// seen it, and then the end. Never suspends; any thread.
  public func subscribe() -> Subscription<Value> { source.subscribe() }

  /// Closes the watch: its receivers get the last value if they have not seen it, then nil, or `cause` thrown.
  ///
  /// ``value`` stays. Later sends and updates throw ``ChannelClosedError``. Never suspends; any thread.
  /// - Returns: True for the first close, false for all others, which change nothing.
  @discardableResult
  public func close(_ cause: (any Error)? = nil) -> Bool { source.close(cause) }

  /// Whether the watch was closed.
  ///
  /// Any thread.
  public var isClosed: Bool { source.isClosed }
}
