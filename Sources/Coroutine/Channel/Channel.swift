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
  /// Whether reports list the channel (ValueQueues.swift); constant after the init.
  @exclusivity(unchecked) private var isListed = false
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
  ///   - file: The place of the creation, for reports (``CoroutineRuntime/queues(most:)``).
  ///   - line: The line of that place.
  public convenience init(
    _ capacity: Capacity = .rendezvous,
    onUndelivered: (@Sendable (Element) -> Void)? = nil,
    file: StaticString = #fileID,
    line: UInt = #line
  ) {
    self.init(unlisted: capacity, onUndelivered: onUndelivered)
    isListed = ValueQueues.add(self, limit: capacity.limit, LaunchSite(file: file, line: line))
  }

  /// Creates a channel that reports do not list.
  init(unlisted capacity: Capacity, onUndelivered: (@Sendable (Element) -> Void)?) {
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
    if isListed { ValueQueues.remove(self) }
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

// MARK: - The state, under the lock

/// The effect of a full channel on a sender.
@usableFromInline enum ChannelOverflow: UInt8, Sendable { case waits, dropsOldest, dropsNewest }

/// The state of a channel, and its transitions.
///
/// Pure: it takes no lock, wakes no waiter and calls no foreign code. It claims waits and moves values, and returns the
/// waiters that its caller must wake after leaving the lock.
///
/// Invariants, under the lock
///  1. While a receiver waits, the ring is empty and no sender waits. So a hand-off never overtakes buffered values. (A
///     select may wait on both sides of one channel; its two waiters never match, because the coroutine that seeks
///     a partner is running and has no wait to claim.)
///  2. Senders wait only if the overflow says so and the ring holds `limit` values or more. It holds more than `limit`
///     for two reasons only. Values were put back: the cancelled receiver that had them cannot wait for room, and
///     dropping a value that a bounded channel has accepted, or the oldest value of a `dropNewest` channel, would be
///     worse. (Into a `dropOldest` channel, no more values are put back than fit.) Or an actor was promised a notice
///     (`insist`), whatever its mailbox holds.
///  3. After the close, there are no waiters and nothing is added.
///  4. A value changes owner together with the claim of its receiver's or sender's wait. A thread that fails to claim
///     the wait has not touched the value. Hence every accepted value is in exactly one place: the ring, a waiter's
///     storage, or its receiver.
///  5. After a receiver was told the end, the ring stays empty: no receiver gets a value after another got nil.
///  6. No transition allocates, because all run under a spin lock. An offer that finds the memory of the ring full
///     answers `noRoom`, and has changed nothing; the channel makes the ring larger and offers again. Until then the
///     value is not sent, so other senders may come before it. While senders wait, the capacity of the ring is `limit`
///     or more (by 2, and because its memory is taken away only while no sender waits), so their values can move up.
///  7. An empty ring is not large (Ring.isLarge), so a burst leaves no memory behind: the receive that empties a large
///     one takes its memory away, and frees it after the lock. A channel that pulses below that size pays nothing.
///     Above it, a pulse pays for memory that is proportional to its values.
///
///   OPEN --- close ---> CLOSED, buffered values remain --- received or cancelled ---> CLOSED and drained
@usableFromInline
struct ChannelState<Element>: ~Copyable {
  /// The result of an offer.
  @usableFromInline enum Offer: UInt8, Sendable {
    /// The value was received or buffered. If the storage is not empty, it now holds the value that was dropped.
    case accepted
    case full
    case closed
    /// The ring must get larger first (invariant 6).
    case noRoom
  }

  @usableFromInline var ring: Ring<Element>
  @usableFromInline var receivers = WaitQueue()
  @usableFromInline var senders = WaitQueue()
  @usableFromInline var isClosed = false
  /// Closed, and no remaining value will be received.
  @usableFromInline var isCancelled = false
  /// Closed, and a receiver has been told so.
  @usableFromInline var endWasTold = false
  @usableFromInline let overflow: ChannelOverflow
  /// The number of values that the ring accepts before `overflow` applies.
  @usableFromInline let limit: Int
  /// The cause given to `close`; constant after the close.
  @usableFromInline var cause: (any Error)?
  /// The owner number of the coroutine that has waited to receive last, or found nothing in a select, for reports; 0 if
  /// none has.
  @usableFromInline var lastReceiver: UInt = 0

  @inlinable
  init(limit: Int, overflow: ChannelOverflow) {
    self.limit = limit
    self.overflow = overflow
    // A bounded channel allocates at its creation and never again, except a very large one (takeRing).
    ring = Ring(capacity: limit == .max ? 0 : min(limit, Ring<Element>.usual))
  }

  /// Offers a value for sending.
  ///
  /// An accepted value is moved out of `storage`; a dropped value is left there. `woken` becomes the receiver of the
  /// value.
  @inlinable @inline(__always)
  mutating func offer(
    _ storage: UnsafeMutablePointer<Element?>,
    _ woken: inout UnsafeMutablePointer<Waiter>?
  ) -> Offer {
    if receivers.first != nil, let waiter = receivers.claimFirst() {
      waiter.storage(of: Element.self).initialize(to: storage.take())
      woken = waiter
      return .accepted
    }
    if ring.count < limit, !isClosed {
      if ring.isFull { return .noRoom }
      ring.append(storage.take().unsafelyUnwrapped)
      return .accepted
    }
    return overflow == .waits || isClosed ? (isClosed ? .closed : .full) : displace(storage)
  }

  /// Sends to a full dropping channel.
  @inlinable @inline(never)
  mutating func displace(_ storage: UnsafeMutablePointer<Element?>) -> Offer {
    guard overflow == .dropsOldest else { return .full }
    let oldest = ring.removeFirst()
    ring.append(storage.take().unsafelyUnwrapped)
    storage.initialize(to: oldest)
    return .accepted
  }

  /// Receives a value; returns false if there is none.
  ///
  /// `woken` becomes the sender whose wait has ended.
  @inlinable @inline(__always)
  mutating func take(
    _ storage: UnsafeMutablePointer<Element?>,
    _ woken: inout UnsafeMutablePointer<Waiter>?
  ) -> Bool {
    if ring.count > 0 {
      storage.initialize(to: ring.removeFirst())
      if senders.first != nil { woken = refill() }
      return true
    }
    if senders.first != nil, let waiter = senders.claimFirst() {
      storage.initialize(to: waiter.storage(of: Element.self).take())
      woken = waiter
      return true
    }
    return false
  }

  /// Moves the first waiting sender's value into the room that a receive has made in the ring.
  @inlinable @inline(__always)
  mutating func refill() -> UnsafeMutablePointer<Waiter>? {
    guard ring.count < limit, let waiter = senders.claimFirst() else { return nil }
    ring.append(waiter.storage(of: Element.self).take().unsafelyUnwrapped)
    return waiter
  }

  /// The number of values that can be received now, or `most` if there are more.
  ///
  /// Fewer can be received if waiting senders have been cancelled.
  @inlinable
  func available(_ most: Int) -> Int {
    var number = ring.count
    var waiter = senders.first
    while number < most, let sender = waiter {
      number &+= 1
      waiter = sender.pointee.next
    }
    return min(number, most)
  }

  /// Whether a receive that found nothing returns the end; the end then holds for all receivers.
  @inlinable @inline(__always)
  mutating func tellsEnd() -> Bool {
    if isClosed { endWasTold = true }
    return isClosed
  }

  /// Takes the whole ring if that is cheaper than copying under the lock: many values, all wanted, and no waiting
  /// sender whose value must move up.
  ///
  /// The memory goes with the values, so a channel that was full once does not keep it.
  @inlinable
  mutating func takeRing(_ taken: inout Ring<Element>, _ most: Int) -> Bool {
    guard ring.count >= Ring<Element>.many, ring.count <= most, senders.first == nil else { return false }
    taken.continueCounting(after: ring, ring.count)
    swap(&taken, &ring)
    return true
  }

  /// Gives values that a receiver could not keep to the waiting receivers, or puts them back to the front.
  ///
  /// Requires room for them in the memory of the ring. Returns the range of the lost values: all values if nothing will
  /// be received any more; otherwise those that exceed the limit of a `dropOldest` channel, the oldest of the remaining
  /// ones.
  @inlinable
  mutating func putBack(_ values: [Element], _ woken: inout WaitQueue) -> Range<Int> {
    if isCancelled || endWasTold { return values.indices }
    var index = 0
    while index < values.count, let waiter = receivers.claimFirst() {
      waiter.storage(of: Element.self).initialize(to: values[index])
      woken.append(waiter)
      index += 1
    }
    var kept = index
    if overflow == .dropsOldest { kept = max(index, values.count - max(0, limit - ring.count)) }
    for value in values[kept...].reversed() { ring.prepend(value) }
    return index..<kept
  }

  /// Closes the channel; returns false if it was closed before.
  ///
  /// Claims all waiters. Their waits end when the caller wakes them; until then the senders' values belong to the
  /// caller.
  @inlinable
  mutating func close(_ cause: (any Error)?, _ woken: inout WaitQueue) -> Bool {
    let isFirst = !isClosed
    isClosed = true
    if isFirst { self.cause = cause }
    // Also after `beginCancel`, which leaves them.
    while let waiter = receivers.claimFirst() {
      endWasTold = true
      woken.append(waiter)
    }
    while let waiter = senders.claimFirst() {
      waiter.valueWaiter.pointee.isClosed = true
      woken.append(waiter)
    }
    return isFirst
  }
}

// MARK: - The buffer

/// A FIFO of values in a circular buffer.
///
/// Invariants: `capacity` is zero or a power of two. The initialised elements are the `count` elements from `head` on,
/// modulo the capacity. One channel owns the ring and accesses it under its lock. `head` only grows, except for values
/// that are put back, so that `removed` tells reports which value is the first; a receive pays nothing for that.
///
/// The frequent operations are plain loads and stores in memory of a known type, so they inline into the caller of a
/// channel. Only `init`, `makeRoom` and `deinit` allocate or free, so they are never called under a lock. A channel
/// grows its ring by creating a larger one outside the lock, and moving the values to it under the lock
/// (`Channel.lockWithRoom`). To move them is one copy of plain memory; because capacities double, a ring that holds n
/// values has copied fewer than n in all.
@usableFromInline
struct Ring<Element>: ~Copyable {
  @usableFromInline var storage: UnsafeMutablePointer<Element>?
  @usableFromInline var capacity = 0
  @usableFromInline var head = 0
  @usableFromInline var count = 0
  /// What `removed` counts before `head`: the memory was exchanged.
  @usableFromInline var removedBefore = 0

  /// The number of values that have left the queue of this ring, those that were put back less.
  @inlinable var removed: Int { removedBefore &+ head }

  /// Makes an empty ring count on from another one, of which `count` values leave the queue with it.
  @inlinable
  mutating func continueCounting(after other: borrowing Ring, _ count: Int) {
    removedBefore = other.removed &+ count &- head
  }

  /// From this number of values on, giving the memory away and growing anew is cheaper than moving values one by one
  /// under a lock.
  @inlinable static var many: Int { 1_024 }

  /// The capacity with which a bounded channel begins at most, in values: 64 KiB.
  @inlinable static var usual: Int { Swift.max(8, 65_536 / Swift.max(1, MemoryLayout<Element>.stride)) }

  /// Whether the ring is larger than usual: then a burst has made it so, and it gives the memory back once it is empty.
  @inlinable
  var isLarge: Bool {
    @inline(__always) get { capacity > 2 * Self.usual }
  }

  @inlinable
  init(capacity wanted: Int) {
    if wanted == 0 { return }
    capacity = 8
    while capacity < wanted { capacity *= 2 }
    storage = .allocate(capacity: capacity)
  }

  @inlinable
  deinit {
    guard let storage else { return }
    for index in 0..<count { (storage + ((head &+ index) & (capacity &- 1))).deinitialize(count: 1) }
    storage.deallocate()
  }

  @inlinable
  var isFull: Bool {
    @inline(__always) get { count == capacity }
  }

  /// Adds a value at the back.
  ///
  /// Requires room.
  @inlinable @inline(__always)
  mutating func append(_ value: consuming Element) {
    (storage.unsafelyUnwrapped + ((head &+ count) & (capacity &- 1))).initialize(to: value)
    count &+= 1
  }

  /// Removes and returns the value at the front.
  ///
  /// Requires a value.
  @inlinable @inline(__always)
  mutating func removeFirst() -> sending Element {
    // Sound because the ring gives away the only reference that it has; the owner of the ring was given the value.
    nonisolated(unsafe) let value = (storage.unsafelyUnwrapped + (head & (capacity &- 1))).move()
    head = head &+ 1
    count &-= 1
    return value
  }

  /// Adds a value at the front.
  ///
  /// Requires room.
  @inlinable
  mutating func prepend(_ value: consuming Element) {
    head = head &- 1
    (storage.unsafelyUnwrapped + (head & (capacity &- 1))).initialize(to: value)
    count &+= 1
  }

  /// The number of values that can be added.
  @inlinable var room: Int { capacity &- count }

  /// The capacity of a ring with room for this one's values and `more`: at least twice this one's.
  @inlinable
  func capacity(for more: Int) -> Int { max(2 * capacity, count + more) }

  /// Moves all values to `other`, an empty ring, and exchanges the two; does nothing unless `other` is larger.
  ///
  /// Afterwards `other` is what the caller must free.
  @inlinable
  mutating func exchange(with other: inout Ring) {
    guard other.capacity > capacity else { return }
    if let storage, let fresh = other.storage {
      let start = head & (capacity - 1)
      let untilEnd = min(count, capacity - start)
      fresh.moveInitialize(from: storage + start, count: untilEnd)
      (fresh + untilEnd).moveInitialize(from: storage, count: count - untilEnd)
    }
    other.continueCounting(after: self, 0)
    (other.count, count) = (count, 0)
    swap(&self, &other)
  }

  /// Makes room for `more` values.
  ///
  /// Allocates, so it is for the ring of one owner, which no lock guards.
  @inlinable
  mutating func makeRoom(for more: Int) {
    if room >= more { return }
    var larger = Ring(capacity: capacity(for: more))
    exchange(with: &larger)
  }

  /// Moves all values to the end of `values`.
  @inlinable
  mutating func removeAll(into values: inout [Element]) {
    while count > 0 { values.append(removeFirst()) }
  }
}
