// The select cases of a channel.

extension Channel {
  /// Creates a case of ``co_select(biased:_:)`` that receives.
  ///
  /// Ready when a value is available or the channel is closed. `body` receives the value, or nil at the end. If the
  /// channel was closed with a cause and is drained, co_select throws the cause.
  @inlinable
  public func onReceive<R>(_ body: @escaping (sending Element?) throws -> R) -> SelectCase<R> {
    var single = SelectCase(
      ChannelReceive<Element>.self,
      target: self,
      lock: lockAddress,
      queue: receivers.unsafelyUnwrapped,
      taking: body
    )
    SelectStorage<Element>.storeNothing(in: &single.source)
    return single
  }

  /// Creates a case of ``co_select(biased:_:)`` that receives all values that are there, as ``receiveAll()`` does.
  ///
  /// Ready as ``onReceive(_:)`` is. `body` receives the values in order; none at the end. If the channel was closed
  /// with a cause and is drained, co_select throws the cause.
  @inlinable
  public func onReceiveAll<R>(_ body: @escaping (sending [Element]) throws -> R) -> SelectCase<R> {
    onReceive { first in
      // Sound because the senders gave the values away, and this is their one receiver.
      nonisolated(unsafe) var values: [Element] = []
      if let first {
        values.append(first)
        self.takeAll(&values, .max)
      }
      return try body(values)
    }
  }

  /// Creates a case of ``co_select(biased:_:)`` that sends `element`.
  ///
  /// `element` is evaluated when the case is created, and stays with the select unless this case is selected. It must
  /// be Sendable, because a case can be used again. Ready when a receiver waits, when there is room, or when the
  /// channel is closed: then co_select throws ``ChannelClosedError`` and the element goes to `onUndelivered`. A
  /// dropping channel is always ready.
  @inlinable
  public func onSend<R>(_ element: Element, _ body: @escaping () throws -> R) -> SelectCase<R> where Element: Sendable {
    var single = SelectCase(
      ChannelSend<Element>.self,
      target: self,
      lock: lockAddress,
      queue: senders.unsafelyUnwrapped,
      body
    )
    SelectStorage<Element>.store(element, in: &single.source)
    return single
  }

  /// The lock is stored inside the object, so its address is constant for the object's life.
  @inlinable var lockAddress: UnsafePointer<SpinLock> {
    @inline(__always) get { withUnsafePointer(to: lock.known) { $0 } }
  }
}

/// The select operation that receives.
@usableFromInline
enum ChannelReceive<Element>: SelectOperation {
  @inlinable
  static func attempt(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) -> SelectAnswer {
    var woken: UnsafeMutablePointer<Waiter>?
    if channel.state.take(waiter.storage(of: Element.self), &woken) { return .yes(waking: woken) }
    if channel.state.tellsEnd() { return .yes }
    // Sound because a select sets the job before it attempts a case.
    channel.state.lastReceiver = waiter.pointee.valueWaiter.waiter.job.unsafelyUnwrapped.ownerWord
    return .no
  }

  @inlinable
  static func finish(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) throws -> Element? {
    // The attempt was under the lock, which frees no memory. Taken once more only if the ring can be large.
    if channel.state.limit > Ring<Element>.usual {
      channel.lock.known.lock()
      channel.unlockGivingBack()
    }
    if let value = waiter.storage(of: Element.self).take() { return value }
    try channel.throwCause()
    return nil
  }

  @inlinable
  static func prepare(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) { SelectStorage<Element>.prepare(waiter) }
  @inlinable
  static func dispose(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) { SelectStorage<Element>.dispose(waiter) }
}

/// The select operation that sends.
@usableFromInline
enum ChannelSend<Element: Sendable>: SelectOperation {
  @inlinable
  static func attempt(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) -> SelectAnswer {
    var woken: UnsafeMutablePointer<Waiter>?
    switch channel.state.offer(waiter.storage(of: Element.self), &woken) {
    case .accepted: return .yes(waking: woken)
    // A `dropNewest` channel accepts the value and drops it.
    case .full: return channel.state.overflow == .waits ? .no : .yes
    case .noRoom: return .needsRoom
    case .closed:
      waiter.pointee.valueWaiter.isClosed = true
      return .yes
    }
  }

  @inlinable
  static func makeRoom(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) {
    channel.lockWithRoom(for: 1)
    channel.lock.unlock()
  }

  /// A value still in the storage was dropped; a close that ended the wait has already taken it out.
  @inlinable
  static func finish(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) throws {
    channel.drop(waiter.storage(of: Element.self))
    if waiter.pointee.valueWaiter.isClosed { throw ChannelClosedError(cause: channel.cause) }
  }

  @inlinable
  static func prepare(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) { SelectStorage<Element>.prepare(waiter) }
  @inlinable
  static func dispose(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) { SelectStorage<Element>.dispose(waiter) }
}

extension SelectWaiterRef {
  /// The address of the value that a channel case sends or receives.
  @inlinable @inline(__always)
  func storage<Element>(of type: Element.Type) -> UnsafeMutablePointer<Element?> {
    pointee.valueWaiter.storage.assumingMemoryBound(to: Element?.self)
  }
}

/// The storage of a select case's value: the words of its waiter, or memory of its own.
///
/// A receive uses the words of its waiter if an `Element?` fits into them, whatever the element type. Otherwise it
/// allocates memory, once per receiving case per select. A send uses the words if its value fits and is trivial (plain
/// bits).
///
/// A case can be copied and used twice, its waiter cannot. So a case stores bits only if they are trivial (nil is, for
/// every type), and an object otherwise; the waiter gets a copy to move from.
@usableFromInline
enum SelectStorage<Element> {
  @inlinable static var fits: Bool {
    @inline(__always) get {
      MemoryLayout<Element?>.size <= MemoryLayout<SelectWords>.size
        && MemoryLayout<Element?>.alignment <= MemoryLayout<UInt>.alignment
    }
  }

  /// Stores nil, for a receive.
  @inlinable @inline(__always)
  static func storeNothing(in source: inout SelectSource) {
    guard fits else {
      source.needsPreparation = true
      return
    }
    withUnsafeMutableBytes(of: &source.words) {
      $0.baseAddress.unsafelyUnwrapped.assumingMemoryBound(to: Element?.self).initialize(to: nil)
    }
  }

  /// Stores a value, for a send.
  @inlinable @inline(__always)
  static func store(_ element: Element, in source: inout SelectSource) {
    if fits, _isPOD(Element.self) {
      withUnsafeMutableBytes(of: &source.words) {
        $0.baseAddress.unsafelyUnwrapped.assumingMemoryBound(to: Element?.self).initialize(to: element)
      }
    } else {
      source.object = Element.self is AnyObject.Type ? unsafeBitCast(element, to: AnyObject.self) : SelectBox(element)
      source.needsPreparation = true
    }
  }

  @inlinable
  static func prepare(_ waiter: SelectWaiterRef) {
    if !fits {
      waiter.pointee.valueWaiter.storage = UnsafeMutableRawPointer(UnsafeMutablePointer<Element?>.allocate(capacity: 1))
    }
    var value: Element?
    if let object = waiter.pointee.source.pointee.object {
      value =
        Element.self is AnyObject.Type
        ? unsafeBitCast(object, to: Element.self) : unsafeDowncast(object, to: SelectBox<Element>.self).value
    }
    waiter.storage(of: Element.self).initialize(to: value)
  }

  @inlinable
  static func dispose(_ waiter: SelectWaiterRef) {
    let storage = waiter.storage(of: Element.self)
    storage.deinitialize(count: 1)
    if !fits { storage.deallocate() }
  }
}

/// A value that a case holds in an object.
@usableFromInline
final class SelectBox<Element> {
  @usableFromInline let value: Element
  @inlinable
  init(_ value: Element) { self.value = value }
}

// MARK: - What dumps show

// The description of a channel, for dumps.

extension Channel: ValueQueue {
  var waitLock: UnsafePointer<SpinLock> { lockAddress }

  func inspect(_ names: JobNames) -> String {
    let (holding, isWanted) = lock.known.withLock { (state.holding, state.receivers.first != nil) }
    let text =
      switch holding.limit {
      case 0: "\(identity), rendezvous"
      case .max: "\(identity), \(holding.count) values buffered"
      default: "\(identity), \(holding.count) of \(holding.limit) values buffered"
      }
    // Who receives matters where values wait.
    if isWanted || (holding.count == 0 && holding.limit > 0) { return text }
    return text + (names.lastReceiver(holding.lastReceiver).map { ", \($0)" } ?? "")
  }

  var holding: QueueHolding { lock.known.withLock { state.holding } }

  func verb(of queue: UInt?) -> String { queue == UInt(bitPattern: senders) ? "send to" : "receive from" }
}

extension ChannelState {
  /// What the channel holds, for reports; under the lock.
  var holding: QueueHolding {
    QueueHolding(count: ring.count, limit: limit, removed: ring.removed, lastReceiver: lastReceiver)
  }
}
