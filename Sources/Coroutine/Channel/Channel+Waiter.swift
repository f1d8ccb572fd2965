extension UnsafeMutablePointer<Waiter> {
  /// The address of the value that a channel's waiter sends or receives, for every kind of waiter.
  @inlinable @inline(__always)
  func storage<Element>(of type: Element.Type) -> UnsafeMutablePointer<Element?> {
    if pointee.job == nil { return callbackSlot(of: type) }
    return valueWaiter.pointee.storage.assumingMemoryBound(to: Element?.self)
  }

  @inlinable @inline(never)
  func callbackSlot<Element>(of type: Element.Type) -> UnsafeMutablePointer<Element?> {
    pointee.callback._withUnsafeGuaranteedRef {
      unsafeDowncast($0, to: AsyncReceiver<Element>.self).storage
    }
  }
}

extension UnsafeMutablePointer {
  /// Moves the value out of the memory and leaves nil there.
  @inlinable @inline(__always)
  func take<Value>() -> sending Value? where Pointee == Value? {
    // Sound because the sender gave the value away, and the storage has one owner (ChannelState.swift, invariant 4).
    nonisolated(unsafe) let value = pointee.take()
    return value
  }
}
