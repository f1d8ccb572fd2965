import Synchronization

/// Carries values from senders to receivers, in order, each value to exactly one receiver.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideStateSnippets.swift -->
/// ```swift
/// let numbers = Channel<Int>(10)
/// co_launch(name: "producer") {
///   for number in 1...100 { try numbers.send(number) }
///   numbers.close()
/// }
/// try numbers.forEach { number in sum += number }
/// ```
///
/// Values are received in the order in which they were accepted. Waiting senders and waiting receivers are served first
/// come, first served, and a value handed to a waiting receiver never overtakes buffered values. A sender or receiver
/// that wakes another keeps running; the woken coroutines are enqueued on their own queues, in the order of waking.
///
/// Every value that was accepted, or offered by a send that threw, is either received exactly once or passed to
/// `onUndelivered` exactly once, also when its receiver is cancelled at the instant of delivery. A value that `trySend`
/// refused, or that an unselected case of a select holds, stays with the caller and is neither received nor passed on.
///
/// `send`, the receiving functions and iteration suspend, and need a coroutine. The `try` functions, `close` and
/// `cancel` never suspend, and may be called on any thread.
///
/// The values need not be Sendable: a send gives its value away (`sending`), and one receiver gets it. The compiler
/// refuses a use of a value that is not Sendable after `trySend`, so the caller loses such a value if it was refused.
/// ``onSend(_:_:)`` takes Sendable values only, because a case can be used twice.
public final class Channel<Element>: @unchecked Sendable {
  // Sound because the state is accessed under the lock only, and everything else is constant. A value that is not
  // Sendable comes in by a `sending` parameter, so nothing else refers to it, and goes to one receiver or to the hook.

  /// The number of values that a channel buffers, and the effect of a send to a full channel.
  public struct Capacity: Sendable, Hashable, ExpressibleByIntegerLiteral, CustomStringConvertible {
    /// The number of values that are buffered; `Int.max` for any number.
    public let limit: Int
    /// Whether a send may have to wait: the channel has a limit, and drops nothing.
    public var waits: Bool { overflow == .waits && limit != .max }
    @usableFromInline let overflow: ChannelOverflow

    @inlinable
    init(_ limit: Int, _ overflow: ChannelOverflow) {
      self.limit = limit
      self.overflow = overflow
    }

    /// Buffers nothing: a send waits until a receiver takes the value.
    @inlinable public static var rendezvous: Capacity { Capacity(0, .waits) }
    /// Buffers up to this number of values; a send to a full channel waits.
    ///
    /// `bounded(0)` is `rendezvous`.
    @inlinable public static func bounded(_ count: Int) -> Capacity { Capacity(count, .waits) }
    /// Buffers any number of values; a send never waits.
    @inlinable public static var unbounded: Capacity { Capacity(.max, .waits) }
    /// Buffers up to this number of values; a send to a full channel drops the oldest.
    ///
    /// `dropOldest(1)` keeps the latest value.
    @inlinable public static func dropOldest(_ count: Int) -> Capacity { Capacity(count, .dropsOldest) }
    /// Buffers up to this number of values; a send to a full channel drops the sent value.
    @inlinable public static func dropNewest(_ count: Int) -> Capacity { Capacity(count, .dropsNewest) }

    /// Creates `rendezvous` from zero, `bounded` from any other number.
    @inlinable
    public init(integerLiteral count: Int) { self = .bounded(count) }

    /// `rendezvous`, `bounded(3)`, `unbounded`, `dropOldest(3)` or `dropNewest(3)`.
    public var description: String {
      switch overflow {
      case .waits where limit == 0: "rendezvous"
      case .waits: limit == .max ? "unbounded" : "bounded(\(limit))"
      case .dropsOldest: "dropOldest(\(limit))"
      case .dropsNewest: "dropNewest(\(limit))"
      }
    }
  }

  /// Critical sections link waiters and move values.
  ///
  /// No foreign code runs under the lock (no hook, no deinit of a value), and no other lock is taken. The exception is
  /// a select, which takes the locks of all its sources in the order of their addresses.
  @usableFromInline let lock = Shared<SpinLock>()
  // Not shared: only the deinit reads it. It takes a byte that the alignment of the next field leaves unused.
  private let isNamed = Atomic(false)
  @exclusivity(unchecked) @usableFromInline var state: ChannelState<Element>
  @usableFromInline let onUndelivered: (@Sendable (Element) -> Void)?
  /// The addresses of the two queues: a select needs them without the lock.
  @exclusivity(unchecked) @usableFromInline private(set) var receivers: UnsafeMutablePointer<WaitQueue>?
  @exclusivity(unchecked) @usableFromInline private(set) var senders: UnsafeMutablePointer<WaitQueue>?

  /// Creates an open, empty channel.
  ///
  /// Traps on a negative count, and on a dropping channel that buffers nothing.
  ///
  /// - Parameters:
  ///   - capacity: The number of values that the channel buffers, and the effect of a send to a full channel.
  ///   - onUndelivered: Receives every value that was accepted, or offered by a send that threw, and will never be
  ///     received: dropped, cancelled, offered to a closed channel, or left in the buffer at the channel's end. It is
  ///     called on whichever thread detects this, under no lock. It must neither block nor suspend: `close` calls it
  ///     before it wakes the waiters, so waiting for one of them never ends; a cancelled sender or receiver calls it
  ///     while it unwinds, where every suspension throws at once; after the last reference to the channel is released
  ///     it runs inside a `deinit`, possibly on a thread without a coroutine. Move long work elsewhere: launch a
  ///     coroutine, or `trySend` into another channel; for that the values must be Sendable.
  public init(_ capacity: Capacity = .rendezvous, onUndelivered: (@Sendable (Element) -> Void)? = nil) {
    self.onUndelivered = onUndelivered
    let limit = capacity.limit
    if capacity.overflow != .waits, limit < 1 {
      misuse("A channel that drops must hold at least 1 value, not \(limit): else it would drop all.")
    }
    if limit < 0 { misuse("A channel cannot hold \(limit) values: use 0 or .rendezvous to hold none.") }
    state = ChannelState(limit: limit, overflow: capacity.overflow)
    receivers = withUnsafeMutablePointer(to: &state.receivers) { $0 }
    senders = withUnsafeMutablePointer(to: &state.senders) { $0 }
  }

  deinit {
    Inspection.letFinish(self)
    if isNamed.load(ordering: .relaxed) { ObjectNames.remove(self) }
    // No waiter is left: every waiter holds a reference to the channel.
    guard let onUndelivered else { return }
    while state.ring.count > 0 { onUndelivered(state.ring.removeFirst()) }
  }

  /// Whether the channel was closed; buffered values may still be there to receive.
  ///
  /// Any thread.
  public var isClosed: Bool { lock.withLock { state.isClosed } }

  /// The number of buffered values at this moment, without the values of waiting senders.
  ///
  /// Any thread.
  public var count: Int { lock.withLock { state.ring.count } }

  /// The number of values that the channel buffers, and the effect of a send to a full channel.
  ///
  /// Any thread.
  public var capacity: Capacity { lock.known.withLock { Capacity(state.limit, state.overflow) } }

  /// Gives the channel a name, which dumps show: `Channel<Int> "jobs" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The channel.
  @discardableResult
  public func named(_ name: String) -> Channel {
    ObjectNames.set(name, of: self)
    isNamed.store(true, ordering: .relaxed)
    return self
  }

  // MARK: Shared by all verbs

  /// Takes the lock while the memory of the ring has room for `wanted` more values.
  ///
  /// Memory is allocated and freed without the lock. Meanwhile other threads may make the ring larger, fill it, or take
  /// it away, so each round checks again.
  @inlinable @inline(never)
  func lockWithRoom(for wanted: Int) {
    lock.lock()
    while state.ring.room < wanted {
      let capacity = state.ring.capacity(for: wanted)
      lock.unlock()
      var other = Ring<Element>(capacity: capacity)
      lock.lock()
      state.ring.exchange(with: &other)
      lock.unlock()
      _ = consume other
      lock.lock()
    }
  }

  /// Passes a value that will not be received to `onUndelivered`.
  @inlinable @inline(never)
  func drop(_ storage: UnsafeMutablePointer<Element?>) {
    guard let value = storage.take() else { return }
    onUndelivered?(value)
  }

  /// Ends a receive that found the channel closed and drained: throws the cause, if there is one.
  @usableFromInline @inline(never)
  func throwCause() throws {
    guard let cause else { return }
    Carrier.noteFailure()
    throw cause
  }

  /// The cause given to `close`.
  ///
  /// Read under the lock because ThreadSanitizer treats the whole state as one variable. It does not change after the
  /// close.
  @inlinable var cause: (any Error)? {
    lock.known.lock()
    defer { lock.unlock() }
    return state.cause
  }
}

/// The result of ``Channel/trySend(_:)``.
public enum TrySend: Sendable, Equatable {
  /// The value was received or is buffered.
  case sent
  /// The value was not sent: the channel is full, and no receiver waits.
  case full
  /// The value was not sent: the channel is closed.
  case closed
}

/// The result of ``Channel/tryReceive()``.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/SymbolSnippets.swift -->
/// ```swift
/// while true {
///   switch channel.tryReceive() {
///   case .received(let value): values.append(value)
///   case .empty: return (values, false)
///   case .closed: return (values, true)
///   }
/// }
/// ```
public enum TryReceive<Element> {
  /// A value.
  case received(Element)
  /// No value at this moment.
  case empty
  /// No value now or later: the channel is closed and drained.
  case closed
}

extension TryReceive: Sendable where Element: Sendable {}
