/// Carries values from those who send to those who receive, in order, each to exactly one.
///
/// Values are received in the order in which they were accepted; senders and receivers that wait are served in the order
/// in which they came, and a value handed to one that waits never overtakes what is buffered. The waker goes on: whoever it
/// woke runs when the waker suspends, on the woken one's own queue, and woken ones run in the order of waking.
///
/// Every value that was accepted, or offered by a send that threw, is received exactly once or reaches `onUndelivered`
/// exactly once, also when its receiver is cancelled in the instant of delivery. What `trySend` refused, or a select's losing
/// case still holds, stays the caller's and reaches neither.
///
/// `send`, the receiving verbs and iteration wait, in a coroutine; the `try` verbs, `close` and `cancel` never do and may be
/// called on any thread.
public final class Channel<Element: Sendable>: @unchecked Sendable {
  // Sound because the state is touched under the lock, and the rest never changes.

  /// How many values a channel holds for receivers to come, and what a send does when it holds that many.
  public enum Capacity: Sendable, ExpressibleByIntegerLiteral {
    /// Holds none: a send waits until a receiver takes the value.
    case rendezvous
    /// Holds so many; a send to a full channel waits. `bounded(0)` is `rendezvous`.
    case bounded(Int)
    /// Holds any number; a send never waits.
    case unbounded
    /// Holds so many; a send to a full channel drops the oldest. `dropOldest(1)` keeps the latest value only.
    case dropOldest(Int)
    /// Holds so many; a send to a full channel drops what is sent.
    case dropNewest(Int)

    /// Zero is `rendezvous`, any other number `bounded`.
    public init(integerLiteral count: Int) { self = count == 0 ? .rendezvous : .bounded(count) }
  }

  /// Critical sections link nodes and move values; no foreign code runs under it (no hook, no deinit of a value) and no
  /// other lock is taken, except by a select, which takes those of all its places in the order of their addresses.
  @usableFromInline let lock = SpinLock()
  @exclusivity(unchecked) @usableFromInline var state: ChannelState<Element>
  @usableFromInline let onUndelivered: (@Sendable (Element) -> Void)?
  /// Where the two queues lie: what a select needs to know of them without the lock.
  @exclusivity(unchecked) @usableFromInline private(set) var receivers: UnsafeMutablePointer<WaitQueue>?
  @exclusivity(unchecked) @usableFromInline private(set) var senders: UnsafeMutablePointer<WaitQueue>?

  /// Creates an open, empty channel.
  ///
  /// Traps on a negative count and on a dropping channel that holds nothing.
  ///
  /// - Parameters:
  ///   - capacity: How many values it holds for receivers to come, and what a full one does.
  ///   - onUndelivered: Gets every value that was accepted, or offered by a send that threw, and will never be received:
  ///     dropped, cancelled, closed over, left in the buffer at the channel's end. Called on whatever thread finds out, under
  ///     no lock. It must neither block nor suspend: a `close` calls it before it wakes those who waited, so to wait for one
  ///     of them is to wait for ever; a cancelled sender or receiver calls it on its way out, where every suspension throws
  ///     at once; and where the channel's last owner lets go of it, it runs inside a `deinit`, which may be on a thread that
  ///     has no coroutine. Hand on what takes time: launch a coroutine, or `trySend` into another channel.
  public init(_ capacity: Capacity = .rendezvous, onUndelivered: (@Sendable (Element) -> Void)? = nil) {
    self.onUndelivered = onUndelivered
    switch capacity {
    case .rendezvous:
      state = ChannelState(limit: 0, overflow: .waits)
    case .bounded(let count):
      if count < 0 { misuse("A channel cannot hold \(count) values: use 0 or .rendezvous to hold none.") }
      state = ChannelState(limit: count, overflow: .waits)
    case .unbounded:
      state = ChannelState(limit: .max, overflow: .waits)
    case .dropOldest(let count):
      if count < 1 { misuse("A channel that drops must hold at least 1 value, not \(count): else it would drop all.") }
      state = ChannelState(limit: count, overflow: .dropsOldest)
    case .dropNewest(let count):
      if count < 1 { misuse("A channel that drops must hold at least 1 value, not \(count): else it would drop all.") }
      state = ChannelState(limit: count, overflow: .dropsNewest)
    }
    receivers = withUnsafeMutablePointer(to: &state.receivers) { $0 }
    senders = withUnsafeMutablePointer(to: &state.senders) { $0 }
  }

  deinit {
    Inspection.letFinish(self)
    // Nobody waits: whoever did would hold the channel.
    guard let onUndelivered else { return }
    while state.ring.count > 0 { onUndelivered(state.ring.removeFirst()) }
  }

  /// Whether it was closed; what is buffered may still be there to receive.
  ///
  /// Any thread.
  public var isClosed: Bool { lock.withLock { state.isClosed } }

  /// How many values are buffered at this moment; values that waiting senders hold do not count.
  ///
  /// Any thread.
  public var count: Int { lock.withLock { state.ring.count } }

  // MARK: For all verbs

  /// A value that nobody will receive.
  @inlinable @inline(never)
  func drop(_ slot: UnsafeMutablePointer<Element?>) {
    guard let value = slot.take() else { return }
    onUndelivered?(value)
  }

  /// Ends a receive that found the channel closed and drained: throws the cause, where there is one.
  @inlinable @inline(never)
  func throwCause() throws {
    guard let cause else { return }
    Carrier.noteFailure()
    throw cause
  }

  /// What it was closed with.
  ///
  /// Read under the lock for the sake of ThreadSanitizer, which takes the state for one variable.
  @inlinable var cause: (any Error)? {
    lock.lock()
    defer { lock.unlock() }
    return state.cause
  }
}

/// What ``Channel/trySend(_:)`` did.
public enum TrySend: Sendable, Equatable {
  /// The value was received or is buffered.
  case sent
  /// Nothing: the channel holds all that it can, and nobody waits for a value.
  case full
  /// Nothing: the channel is closed.
  case closed
}

/// What ``Channel/tryReceive()`` found.
public enum TryReceive<Element: Sendable>: Sendable {
  /// A value.
  case received(Element)
  /// Nothing at this moment.
  case empty
  /// Nothing, for ever: the channel is closed and drained.
  case closed
}
