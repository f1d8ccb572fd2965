extension UnsafeMutablePointer<Waiter> {
  /// Where the value of a waiter in a channel lies, whoever waits.
  @inlinable @inline(__always)
  func slot<Element: Sendable>(of type: Element.Type) -> UnsafeMutablePointer<Element?> {
    if pointee.job == nil { return callbackSlot(of: type) }
    return valueWaiter.pointee.slot.assumingMemoryBound(to: Element?.self)
  }

  @inlinable @inline(never)
  func callbackSlot<Element: Sendable>(of type: Element.Type) -> UnsafeMutablePointer<Element?> {
    pointee.callback._withUnsafeGuaranteedRef {
      unsafeDowncast($0, to: AsyncReceiver<Element>.self).slot
    }
  }
}

extension UnsafeMutablePointer {
  /// Takes the value out of a slot and leaves it empty.
  @inlinable @inline(__always)
  func take<Value>() -> Value? where Pointee == Value? { pointee.take() }
}
