// The two cases of a channel.

extension Channel {
  /// For ``co_select(biased:_:)``: receives.
  ///
  /// Ready when a value is there or the channel is closed; `body` gets the value, or nil at the end. Closed with a
  /// cause, and drained, co_select throws the cause.
  @inlinable
  public func onReceive<R>(_ body: @escaping (Element?) throws -> R) -> SelectCase<R> {
    var single = SelectCase(
      ChannelReceive<Element>.self,
      place: self,
      lock: lockAddress,
      queue: receivers.unsafelyUnwrapped,
      taking: body
    )
    SelectSlot<Element>.storeNothing(in: &single.source)
    return single
  }

  /// For ``co_select(biased:_:)``: sends `element`, which is evaluated with the case and stays with the select unless
  /// this case commits.
  ///
  /// Ready when a receiver waits, there is room, or the channel is closed: then co_select throws ``ChannelClosed`` and
  /// the element goes to `onUndelivered`. A dropping channel is always ready.
  @inlinable
  public func onSend<R>(_ element: Element, _ body: @escaping () throws -> R) -> SelectCase<R> {
    var single = SelectCase(
      ChannelSend<Element>.self,
      place: self,
      lock: lockAddress,
      queue: senders.unsafelyUnwrapped,
      body
    )
    SelectSlot<Element>.store(element, in: &single.source)
    return single
  }

  /// A part of the object, and so at one address for as long as that lives.
  @inlinable var lockAddress: UnsafePointer<SpinLock> {
    @inline(__always) get { withUnsafePointer(to: lock) { $0 } }
  }
}

/// Receiving, as a select's operation.
@usableFromInline
enum ChannelReceive<Element: Sendable>: SelectOperation {
  @inlinable
  static func attempt(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) -> SelectAnswer {
    var woken: UnsafeMutablePointer<Waiter>?
    if channel.state.take(waiter.slot(of: Element.self), &woken) { return .yes(waking: woken) }
    return channel.state.tellsEnd() ? .yes : .no
  }

  @inlinable
  static func finish(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) throws -> Element? {
    if let value = waiter.slot(of: Element.self).take() { return value }
    try channel.throwCause()
    return nil
  }

  @inlinable
  static func prepare(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) { SelectSlot<Element>.prepare(waiter) }
  @inlinable
  static func dispose(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) { SelectSlot<Element>.dispose(waiter) }
}

/// Sending, as a select's operation.
@usableFromInline
enum ChannelSend<Element: Sendable>: SelectOperation {
  @inlinable
  static func attempt(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) -> SelectAnswer {
    var woken: UnsafeMutablePointer<Waiter>?
    switch channel.state.offer(waiter.slot(of: Element.self), &woken) {
    case .accepted: return .yes(waking: woken)
    // A channel that drops its newest takes it and drops it.
    case .full: return channel.state.overflow == .waits ? .no : .yes
    case .closed:
      waiter.pointee.slotted.isClosed = true
      return .yes
    }
  }

  /// What is still in the slot was dropped; a close that ended the wait has taken it already.
  @inlinable
  static func finish(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) throws {
    channel.drop(waiter.slot(of: Element.self))
    if waiter.pointee.slotted.isClosed { throw ChannelClosed(cause: channel.cause) }
  }

  @inlinable
  static func prepare(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) { SelectSlot<Element>.prepare(waiter) }
  @inlinable
  static func dispose(_ channel: Channel<Element>, _ waiter: SelectWaiterRef) { SelectSlot<Element>.dispose(waiter) }
}

extension SelectWaiterRef {
  /// Where a channel's value lies.
  @inlinable @inline(__always)
  func slot<Element: Sendable>(of type: Element.Type) -> UnsafeMutablePointer<Element?> {
    pointee.slotted.slot.assumingMemoryBound(to: Element?.self)
  }
}

/// How a select's case keeps a value: in the words of its node, or in memory of its own.
///
/// A receive's slot is in the node where an `Element?` fits into its words, whatever the element is; only a larger one is
/// allocated, for each receiving case of each select. A send's value is in the node where it fits and is nothing but bits.
///
/// A case can be copied and used twice, its node cannot. So a case keeps bits only of what is nothing but bits (an empty slot
/// is, whatever the type), and an object of anything else; the node gets a copy to move from.
@usableFromInline
enum SelectSlot<Element: Sendable> {
  @inlinable static var fits: Bool {
    @inline(__always) get {
      MemoryLayout<Element?>.size <= MemoryLayout<SelectWords>.size
        && MemoryLayout<Element?>.alignment <= MemoryLayout<UInt>.alignment
    }
  }

  /// An empty slot, for a receive.
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

  /// A slot with a value, for a send.
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
      waiter.pointee.slotted.slot = UnsafeMutableRawPointer(UnsafeMutablePointer<Element?>.allocate(capacity: 1))
    }
    var value: Element?
    if let object = waiter.pointee.source.pointee.object {
      value =
        Element.self is AnyObject.Type
        ? unsafeBitCast(object, to: Element.self) : unsafeDowncast(object, to: SelectBox<Element>.self).value
    }
    waiter.slot(of: Element.self).initialize(to: value)
  }

  @inlinable
  static func dispose(_ waiter: SelectWaiterRef) {
    let slot = waiter.slot(of: Element.self)
    slot.deinitialize(count: 1)
    if !fits { slot.deallocate() }
  }
}

/// A value that a case holds.
@usableFromInline
final class SelectBox<Element: Sendable>: Sendable {
  @usableFromInline let value: Element
  @inlinable
  init(_ value: Element) { self.value = value }
}
