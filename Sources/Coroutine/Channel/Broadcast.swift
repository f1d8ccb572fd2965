import Synchronization

// Values that each of several receivers sees: Broadcast, and Watch, of which only the newest value counts
// (Watch.swift).
//
// Values have positions, from 0 on in the order of the sends. A subscription has the position of its next value.
//
//   positions      … start        …          end
//                    oldest kept             of the next send
//
//   subscription   BEHIND    position < end: a receive takes the value there, or is told what it has missed
//                  UP TO DATE   position = end: a receive waits, or is told the end
//
// A sender hands its value to each waiter that it claims, and moves the waiter's subscription on, in one critical
// section. For the subscriptions that it does not reach the value is kept, with the number of those that have yet to
// take it. The last of them moves the value out. So a value lives as long as a subscription needs it, at most `limit`
// sends long, and a value that all waiters got is not kept at all. A Watch keeps its newest value always, and counts
// nothing.
//
// Invariants, under the lock
//  1. While a waiter is linked, its subscription is up to date. A send visits every waiter: it claims and unlinks it;
//     or it unlinks one whose wait has ended otherwise; or the subscription got the value through an earlier waiter,
//     and is up to date again. Two coroutines may share a subscription: each value goes to one of them.
//  2. The kept values are those of the positions start ..< end. A value is left out only if every subscription got it.
//     Then none is behind; and it is kept all the same if others are, so that positions have no gap.
//  3. `awaited` of a kept value is the number of subscriptions with a position at or before it, so it never falls from
//     one value to the next, and values without any are the oldest. There are such only while a release takes them out,
//     one by one; a take that brings a value to 0 takes it out if it is the oldest, and otherwise leaves it to that
//     release.
//  4. After the close there is no waiter, and no send adds anything.
//  5. No transition allocates, frees, or runs code of users, because all run under a spin lock. A copy of a value is a
//     retain. A value that is dropped, or replaced, is released after the lock.
//
// Races, each decided by the claim of the wait (Waiter.swift) under the one lock
//   send against cancellation   If the claim fails, the waiter gets nothing and its subscription stays behind: the
//                               value is kept for its next receive. If it succeeds, the value is the waiter's.
//   send against a new waiter   The waiter looks and links in one critical section: it sees the value, or the sender
//                               sees the waiter.
//   send against send           The lock orders them, and all subscriptions see that order.
//   send against subscribe      A subscription begins at the end of its moment: it sees every later value and no
//                               earlier.
//   send against release        A release gives up its share of all values, and is no longer counted, in one critical
//                               section: the value comes before it or after it. What is left to take out, it takes
//                               out afterwards.
//   close against send          The lock orders them: the value is there before the end is told, or the send throws.
//   update against update       (Watch) Each reads the value with its position, and sends if no other send has moved
//                               the end since. The first to send wins, and the others begin again.
//   select                      Its waiters share one wait. The send that claims it hands over one value; the
//                               subscriptions of its other waiters stay behind.

/// Carries values to several receivers, each of which sees each value.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/BroadcastSnippets.swift -->
/// ```swift
/// let prices = Broadcast<Int>(16)
/// let seen = prices.subscribe()
/// let last = co_launch {
///   var last = 0
///   while let price = try seen.receive() { last = price }
///   return last
/// }
/// for price in [7, 9, 8] { try prices.send(price) }
/// prices.close()
/// ```
///
/// A ``Subscription`` sees the values that are sent after ``subscribe()``, in the order of the sends, which is the same
/// for all. A value for which nothing has subscribed is dropped.
///
/// A send never waits, so a receiver that is slower than the senders falls behind. The broadcast keeps the newest
/// values, as many as its capacity, for those that are behind; a receiver that has missed some is told how many
/// (``SubscriptionLaggedError``), and goes on with the oldest that is kept. Where each value must arrive, give each
/// receiver a ``Channel``, whose sends wait. Where only the newest value counts, use a ``Watch``.
///
/// The functions here never suspend, and may be called on any thread, by coroutines or other code.
public final class Broadcast<Element: Sendable>: @unchecked Sendable {
  // Sound because the state is accessed under the lock only, and everything else is constant.

  let lock = Shared<SpinLock>()
  // Not shared: only the deinit reads it.
  private let isNamed = Atomic(false)
  @exclusivity(unchecked) fileprivate var state: BroadcastState<Element>
  /// The address of the queue: a select needs it without the lock.
  @exclusivity(unchecked) fileprivate private(set) var waiters: UnsafeMutablePointer<WaitQueue>?

  /// Creates an open broadcast without subscriptions.
  ///
  /// - Parameter capacity: The number of values that are kept for a subscription that is behind; `Int.max` for any
  ///   number, which then grows without a limit while a subscription is not received from. Traps below 1.
  public convenience init(_ capacity: Int) {
    if capacity < 1 {
      misuse("A Broadcast cannot keep \(capacity) values: give it 1 or more, or its receivers would miss all.")
    }
    self.init(limit: capacity, newest: nil)
  }

  /// Creates a broadcast; with `newest`, that of a Watch.
  init(limit: Int, newest: Element?) {
    state = BroadcastState(limit: limit, newest: newest)
    waiters = withUnsafeMutablePointer(to: &state.waiters) { $0 }
  }

  deinit {
    Inspection.letFinish(self)
    if isNamed.load(ordering: .relaxed) { ObjectNames.remove(self) }
  }

  /// Gives the broadcast a name, which dumps show: `Broadcast<Int> "prices" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The broadcast.
  @discardableResult
  public func named(_ name: String) -> Broadcast {
    ObjectNames.set(name, of: self)
    isNamed.store(true, ordering: .relaxed)
    return self
  }

  /// Subscribes to the values that are sent from now on.
  ///
  /// The subscription ends when its last reference is released. After a close it receives the end at once. Never
  /// suspends; any thread.
  public func subscribe() -> Subscription<Element> { Subscription(to: self) }

  /// Sends a value to all subscriptions.
  ///
  /// Subscriptions whose receivers wait get it at once; the receivers run later, and this call goes on. For all others
  /// the value is kept; one that was behind by the capacity misses its oldest value by this. Never suspends; any
  /// thread. Takes time in proportion to the receivers that wait. A coroutine that sends many values in a loop calls
  /// ``co_yield()``, or its receivers on the same queue fall behind.
  ///
  /// - Returns: The number of subscriptions; with 0 the value was dropped.
  /// - Throws: ``ChannelClosedError`` after `close`, with its cause.
  @discardableResult
  public func send(_ element: Element) throws -> Int {
    guard let count = publish(element) else { throw ChannelClosedError(cause: cause) }
    return count
  }

  /// Closes the broadcast: its receivers get what they have not seen, then nil, or `cause` thrown if there is one.
  ///
  /// Later sends throw ``ChannelClosedError``. Never suspends; any thread.
  /// - Returns: True for the first close, false for all others, which change nothing.
  @discardableResult
  public func close(_ cause: (any Error)? = nil) -> Bool {
    var woken = WaitQueue()
    lock.lock()
    let isFirst = !state.isClosed
    state.isClosed = true
    if isFirst { state.cause = cause }
    while let waiter = state.waiters.claimFirst() { woken.append(waiter) }
    lock.unlock()
    while let waiter = woken.popFirst() { waiter.wake() }
    return isFirst
  }

  /// Whether the broadcast was closed; subscriptions may still have values to receive.
  ///
  /// Any thread.
  public var isClosed: Bool { lock.withLock { state.isClosed } }

  // MARK: What the calls share

  /// Sends a value; with a `version`, only if no value was sent since that position was the end.
  ///
  /// Returns the number of subscriptions; nil if the broadcast is closed; -1 if the version is out of date.
  func publish(_ element: Element, replacing version: Int? = nil) -> Int? {
    var woken = WaitQueue()
    // Released after the lock is left.
    var old: Element?
    lockWithRoom()
    if state.isClosed || version.map({ $0 != state.end }) ?? false {
      let isClosed = state.isClosed
      lock.unlock()
      return isClosed ? nil : -1
    }
    let count = state.add(element, &old, &woken)
    lock.unlock()
    while let waiter = woken.popFirst() { waiter.wake() }
    withExtendedLifetime(old) {}
    return count
  }

  /// Takes the lock while the memory of the ring has room for a value, as `Channel.lockWithRoom` does.
  private func lockWithRoom() {
    lock.lock()
    while state.ring.isFull, state.ring.count < state.limit {
      let capacity = state.ring.capacity(for: 1)
      lock.unlock()
      var other = Ring<BroadcastState<Element>.Kept>(capacity: capacity)
      lock.lock()
      state.ring.exchange(with: &other)
      lock.unlock()
      _ = consume other
      lock.lock()
    }
  }

  /// Leaves the lock after a take, and frees the memory of a large ring that it has emptied.
  fileprivate func unlockGivingBack() {
    guard state.ring.count == 0, state.ring.isLarge else { return lock.unlock() }
    var old = Ring<BroadcastState<Element>.Kept>(capacity: 0)
    swap(&old, &state.ring)
    lock.unlock()
  }

  /// The newest value of a Watch, and the position behind it.
  var newest: (element: Element, version: Int) {
    lock.withLock { (state.ring.address(at: state.ring.count &- 1).pointee.element, state.end) }
  }

  /// The cause given to `close`.
  var cause: (any Error)? { lock.withLock { state.cause } }

  /// Ends a receive that was told the end: throws the cause, if there is one.
  fileprivate func throwCause() throws {
    guard let cause else { return }
    Carrier.noteFailure()
    throw cause
  }

  /// Counts a new subscription, and returns its position: a Watch shows its newest value first.
  fileprivate func enter() -> Int {
    lock.withLock {
      state.subscribers &+= 1
      return state.keepsNewest ? state.end &- 1 : state.end
    }
  }

  /// Ends a subscription: gives up its share of the values that it has not taken, and lets go of those that no
  /// subscription has yet to take.
  ///
  /// One by one, because a release runs code of users, which may use the broadcast.
  fileprivate func leave(_ position: Int) {
    var isLeft = false
    while true {
      // Released after the lock is left.
      var old: Element?
      lock.lock()
      if !isLeft { state.leave(position) }
      isLeft = true
      let isOver = !state.takeUnawaited(into: &old)
      unlockGivingBack()
      if isOver { return }
      withExtendedLifetime(old) {}
    }
  }
}

// MARK: - A subscription

/// The place of one receiver in the values of a ``Broadcast`` or a ``Watch``.
///
/// ``Broadcast/subscribe()`` and ``Watch/subscribe()`` make it. It ends when its last reference is released. Several
/// coroutines may receive from one subscription; each value then goes to one of them.
public final class Subscription<Element: Sendable>: @unchecked Sendable {
  // Sound because the position is accessed under the lock of the source only, and the source is constant.
  let source: Broadcast<Element>
  /// The position of the next value.
  @exclusivity(unchecked) fileprivate var position = 0

  fileprivate init(to source: Broadcast<Element>) {
    self.source = source
    position = source.enter()
  }

  deinit {
    Inspection.letFinish(self)
    // No waiter is left: every waiter holds a reference to the subscription.
    source.leave(position)
  }

  /// Receives the next value: of a ``Broadcast`` the one after the last received, of a ``Watch`` the newest.
  ///
  /// Suspends until there is one; a send or a close resumes the coroutine, on its own scheduler. If the coroutine is
  /// cancelled, it throws at once, even if it would not have to wait, and no value is consumed.
  ///
  /// - Returns: The value, or nil if the source is closed and all its values were received.
  /// - Throws: ``SubscriptionLaggedError`` once after values were missed, and the next call goes on; the cancellation
  ///   error; at the end the cause given to `close`; ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "use `for try await`")
  public func receive() throws -> Element? {
    let (carrier, job) = try Carrier.beginWaiting(for: source.lock.id)
    var storage: Element?
    try withUnsafeMutablePointer(to: &storage) { storage in
      source.lock.known.lock()
      switch step(storage) {
      case .element: return source.unlockGivingBack()
      case .end: return source.lock.unlock()
      case .missed(let count):
        source.lock.unlock()
        throw SubscriptionLaggedError(missed: count)
      case .nothing: break
      }
      var waiting = ValueWaiter(Waiter(job: job), storage: UnsafeMutableRawPointer(storage))
      waiting.waiter.context = address
      // Handed over, or closed; after a close the storage is still empty.
      try withUnsafeMutablePointer(to: &waiting) { waiting in
        _ = try WaitQueue.park(carrier, job, source.kind, for: self) { epoch in
          source.state.waiters.append(waiting.waiter, epoch)
          source.lock.unlock()
        } withdraw: {
          source.lock.known.lock()
          source.state.waiters.remove(waiting.waiter)
          source.lock.unlock()
        }
      }
      takeNewer(storage)
    }
    guard let storage else {
      try source.throwCause()
      return nil
    }
    return storage
  }

  /// Receives the next value if one is there.
  ///
  /// Never suspends; any thread, coroutine or not.
  /// - Throws: ``SubscriptionLaggedError`` once after values were missed, and the next call goes on.
  public func tryReceive() throws(SubscriptionLaggedError) -> TryReceive<Element> {
    var storage: Element?
    source.lock.lock()
    let step = step(&storage)
    source.unlockGivingBack()
    if case .missed(let count) = step { throw SubscriptionLaggedError(missed: count) }
    if let storage { return .received(storage) }
    if case .end = step { return .closed }
    return .empty
  }

  /// Creates a case of ``co_select(biased:_:)`` that receives.
  ///
  /// Ready when there is a value, when values were missed, or at the end. `body` receives the value, or nil at the end.
  /// If values were missed, co_select throws ``SubscriptionLaggedError``; if the source was closed with a cause and all
  /// was received, it throws the cause.
  public func onReceive<R>(_ body: @escaping (sending Element?) throws -> R) -> SelectCase<R> {
    var single = SelectCase(
      SubscriptionReceive<Element>.self,
      target: self,
      lock: waitLock,
      queue: source.waiters.unsafelyUnwrapped,
      needsPreparation: true,
      taking: body
    )
    SelectStorage<Element>.storeNothing(in: &single.source)
    return single
  }

  /// What a receive finds.
  fileprivate enum Step {
    case element
    case missed(Int)
    case nothing, end
  }

  /// Takes the next value into `storage`, or tells what stands in place of it; called under the lock.
  fileprivate func step(_ storage: UnsafeMutablePointer<Element?>) -> Step {
    let missed = source.state.start &- position
    if missed > 0 {
      position = source.state.start
      if !source.state.keepsNewest { return .missed(missed) }
    }
    guard position < source.state.end else { return source.state.isClosed ? .end : .nothing }
    source.state.take(position, into: storage)
    position &+= 1
    return .element
  }

  /// Replaces a value that a send has handed over by the newest one, if the source is a Watch: other sends may have
  /// come since.
  fileprivate func takeNewer(_ storage: UnsafeMutablePointer<Element?>) {
    guard source.state.keepsNewest, storage.pointee != nil else { return }
    var newer: Element?
    source.lock.lock()
    _ = step(&newer)
    source.lock.unlock()
    if let newer { storage.pointee = newer }
  }

  fileprivate var address: UnsafeMutableRawPointer { Unmanaged.passUnretained(self).toOpaque() }
}

/// A receiver was slower than the senders, and has missed values.
///
/// The subscription goes on: the next receive gets the oldest value that is kept.
public struct SubscriptionLaggedError: Error, CustomStringConvertible {
  /// The number of values that were missed.
  public var missed: Int
  /// Creates the error.
  public init(missed: Int) { self.missed = missed }
  /// How many values were missed, and what to do about it.
  public var description: String {
    "a subscription has missed \(missed) value\(missed == 1 ? "" : "s"); receive faster, or give the Broadcast more "
      + "capacity"
  }
}

// MARK: - The state, under the lock

/// The state of a broadcast, and its transitions; the head of the file has the invariants.
private struct BroadcastState<Element>: ~Copyable {
  /// A value, and the number of subscriptions that have yet to take it.
  struct Kept {
    let element: Element
    var awaited: Int
  }

  var ring: Ring<Kept>
  /// The position of the next send.
  var end = 0
  var subscribers = 0
  var waiters = WaitQueue()
  var isClosed = false
  /// The cause given to `close`; constant after the close.
  var cause: (any Error)?
  /// The number of values that are kept at most.
  let limit: Int
  /// Whether it is that of a Watch: the newest value is always kept, and to miss one is no error.
  let keepsNewest: Bool

  /// The position of the oldest kept value.
  var start: Int { end &- ring.count }

  init(limit: Int, newest: Element?) {
    self.limit = limit
    keepsNewest = newest != nil
    ring = Ring(capacity: limit == .max ? 0 : min(limit, Ring<Kept>.usual))
    if let newest {
      ring.append(Kept(element: newest, awaited: 0))
      end = 1
    }
  }

  /// Adds a value: hands it to the waiters that it claims, which the caller wakes, and keeps it for the others.
  ///
  /// Requires room in the memory of the ring. `old` becomes the value that it has displaced. Returns the number of
  /// subscriptions.
  mutating func add(_ element: Element, _ old: inout Element?, _ woken: inout WaitQueue) -> Int
  where Element: Sendable {
    var handed = 0
    var next = waiters.first
    while let waiter = next {
      next = waiter.pointee.next
      let subscription = waiter.subscription(of: Element.self)
      // It has got the value through another waiter.
      if subscription.position != end { continue }
      waiters.remove(waiter)
      if let job = waiter.pointee.job {
        guard job.claim(waiter.pointee.epoch, waiter.pointee.reason) else { continue }
        waiter.storage(ofJob: Element.self).initialize(to: element)
      } else {
        // As `WaitQueue.claimFirst`: it waits no longer.
        waiter.pointee.reason = 0
        waiter.callback(of: Element.self).storage.initialize(to: element)
      }
      subscription.position = end &+ 1
      handed &+= 1
      woken.append(waiter)
    }
    end &+= 1
    if keepsNewest || handed < subscribers || ring.count > 0 {
      if ring.count == limit { old = ring.removeFirst().element }
      ring.append(Kept(element: element, awaited: subscribers &- handed))
    }
    return subscribers
  }

  /// Ends a subscription at `position`.
  mutating func leave(_ position: Int) {
    subscribers &-= 1
    if keepsNewest { return }
    for missing in max(position, start)..<end { ring.address(at: missing &- start).pointee.awaited &-= 1 }
  }

  /// Takes the oldest value out if no subscription has yet to take it; returns false if it has, or if there is none.
  mutating func takeUnawaited(into storage: UnsafeMutablePointer<Element?>) -> Bool {
    if keepsNewest || ring.count == 0 || ring.address(at: 0).pointee.awaited > 0 { return false }
    storage.initialize(to: ring.removeFirst().element)
    return true
  }

  /// Takes the kept value at `position` for one subscription: moves it out if that is the last.
  mutating func take(_ position: Int, into storage: UnsafeMutablePointer<Element?>) {
    let kept = ring.address(at: position &- start)
    if !keepsNewest {
      kept.pointee.awaited &-= 1
      // Behind one that a release has yet to take out, it is left to that (invariant 3).
      if kept.pointee.awaited == 0, position == start {
        storage.initialize(to: ring.removeFirst().element)
        return
      }
    }
    storage.initialize(to: kept.pointee.element)
  }
}

extension Ring {
  /// The address of a value, by its number from the front.
  fileprivate func address(at offset: Int) -> UnsafeMutablePointer<Element> {
    storage.unsafelyUnwrapped + ((head &+ offset) & (capacity &- 1))
  }
}

// MARK: - Waiters

extension UnsafeMutablePointer<Waiter> {
  /// The subscription of a waiter, which is linked, so it is there.
  fileprivate func subscription<Element>(of type: Element.Type) -> Subscription<Element> {
    guard pointee.job != nil, let address = pointee.context else { return callback(of: type).subscription }
    return Unmanaged<Subscription<Element>>.fromOpaque(address).takeUnretainedValue()
  }

  /// Where a job's waiter gets its value.
  fileprivate func storage<Element>(ofJob type: Element.Type) -> UnsafeMutablePointer<Element?> {
    valueWaiter.pointee.storage.assumingMemoryBound(to: Element?.self)
  }

  /// The wait of a Task, if no job waits.
  fileprivate func callback<Element>(of type: Element.Type) -> SubscriptionWait<Element> {
    unsafeDowncast(pointee.callback.takeUnretainedValue(), to: SubscriptionWait<Element>.self)
  }
}

/// The select operation that receives; `context` of its waiter is the subscription, and after an attempt the number of
/// missed values if `isClosed`.
private enum SubscriptionReceive<Element: Sendable>: SelectOperation {
  static func prepare(_ subscription: Subscription<Element>, _ waiter: SelectWaiterRef) {
    SelectStorage<Element>.prepare(waiter)
    waiter.pointee.valueWaiter.waiter.context = subscription.address
  }

  static func attempt(_ subscription: Subscription<Element>, _ waiter: SelectWaiterRef) -> SelectAnswer {
    switch subscription.step(waiter.storage(of: Element.self)) {
    case .nothing: return .no
    case .element, .end: return .yes
    case .missed(let count):
      waiter.pointee.valueWaiter.isClosed = true
      waiter.pointee.valueWaiter.waiter.context = UnsafeMutableRawPointer(bitPattern: count)
      return .yes
    }
  }

  static func finish(_ subscription: Subscription<Element>, _ waiter: SelectWaiterRef) throws -> Element? {
    if waiter.pointee.valueWaiter.isClosed {
      throw SubscriptionLaggedError(missed: Int(bitPattern: waiter.pointee.valueWaiter.waiter.context))
    }
    let source = subscription.source
    // The attempt was under the lock, which frees no memory.
    if source.state.limit > Ring<BroadcastState<Element>.Kept>.usual {
      source.lock.known.lock()
      source.unlockGivingBack()
    }
    subscription.takeNewer(waiter.storage(of: Element.self))
    if let element = waiter.storage(of: Element.self).take() { return element }
    try source.throwCause()
    return nil
  }

  static func dispose(_ subscription: Subscription<Element>, _ waiter: SelectWaiterRef) {
    SelectStorage<Element>.dispose(waiter)
  }
}

// MARK: - Async code

extension Subscription: AsyncSequence {
  /// Receives values one at a time in async code.
  public struct AsyncIterator: AsyncIteratorProtocol, Sendable {
    fileprivate let subscription: Subscription

    /// Receives the next value, as ``Subscription/receive()`` does.
    ///
    /// Suspends the Task until there is one, in the same queue as waiting coroutines. If the Task is cancelled, it
    /// throws `CancellationError` and no value is lost.
    /// - Returns: The value, or nil if the source is closed and all its values were received.
    /// - Throws: ``SubscriptionLaggedError`` once after values were missed; `CancellationError`; at the end the cause
    ///   given to `close`.
    public mutating func next() async throws -> Element? {
      try Task.checkCancellation()
      if case .received(let element) = try subscription.tryReceive() { return element }
      return try await SubscriptionWait(subscription).receive()
    }
  }

  /// Creates an iterator, for `for try await value in subscription` in async code: see ``AsyncIterator/next()``.
  ///
  /// A loop that ends by an error, as after missed values, can be followed by another one, which goes on.
  public func makeAsyncIterator() -> AsyncIterator { AsyncIterator(subscription: self) }
}

/// One receive by async code, once: the Task waits in the queue of the source, where a coroutine has its waiter.
private final class SubscriptionWait<Element: Sendable>: TaskWait, @unchecked Sendable {
  // Sound because `subscription` never changes, and the storage has the owner that ValueWaiter describes.
  let subscription: Subscription<Element>
  let storage: UnsafeMutablePointer<Element?>
  /// Written by `link`, before the Task is resumed.
  @exclusivity(unchecked) private var missed = 0

  private var source: Broadcast<Element> { subscription.source }

  init(_ subscription: Subscription<Element>) {
    self.subscription = subscription
    storage = .allocate(capacity: 1)
    storage.initialize(to: nil)
    super.init()
  }

  deinit {
    storage.deinitialize(count: 1)
    storage.deallocate()
  }

  func receive() async throws -> Element? {
    await wait()
    if missed > 0 { throw SubscriptionLaggedError(missed: missed) }
    subscription.takeNewer(storage)
    if let element = storage.take() { return element }
    // A receive that was claimed before the cancellation has ended by a close.
    if isCancelled, !isClaimed { throw CancellationError() }
    try source.throwCause()
    return nil
  }

  override func link() -> Bool {
    source.lock.lock()
    let isOver = isCancelled || isReady
    if !isOver {
      _ = Unmanaged.passRetained(self as WaitCallback)
      source.state.waiters.append(waiter)
    }
    source.unlockGivingBack()
    return !isOver
  }

  /// Takes what is there; called under the lock.
  private var isReady: Bool {
    switch subscription.step(storage) {
    case .nothing: return false
    case .element, .end: return true
    case .missed(let count):
      missed = count
      return true
    }
  }

  /// As that of a channel's receiver (AsyncReceiver).
  override func leave() -> Bool {
    source.lock.lock()
    let isWaiting = !isClaimed && waiter.pointee.isLinked
    if isWaiting { source.state.waiters.remove(waiter) }
    source.lock.unlock()
    if isWaiting { Unmanaged.passUnretained(self as WaitCallback).release() }
    return isWaiting
  }

  /// Whether a send or a close has ended the receive; called under the lock, or when the wait is over.
  private var isClaimed: Bool { waiter.pointee.reason == 0 }
}

// MARK: - What dumps show

extension Broadcast: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { withUnsafePointer(to: lock.known) { $0 } }

  func inspect(_ names: JobNames) -> String {
    let (count, subscribers) = lock.known.withLock { (state.ring.count, state.subscribers) }
    let readers = "\(subscribers) subscription\(subscribers == 1 ? "" : "s")"
    if state.keepsNewest { return "\(identity(as: "Watch<\(asWord(Element.self))>")), \(readers)" }
    let kept = state.limit == .max ? "\(count)" : "\(count) of \(state.limit)"
    return "\(identity), \(kept) values kept, \(readers)"
  }

  func verb(of queue: UInt?) -> String { state.keepsNewest ? "wait for a change of" : "receive from" }

  fileprivate var kind: WaitKind { state.keepsNewest ? .change : .receive }
}

extension Subscription: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { source.waitLock }
  func inspect(_ names: JobNames) -> String { source.inspect(names) }
  func verb(of queue: UInt?) -> String { source.verb(of: queue) }
}
