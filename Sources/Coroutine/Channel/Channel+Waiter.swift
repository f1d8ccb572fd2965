extension UnsafeMutablePointer<Waiter> {
  /// The address of the value that a channel's waiter sends or receives, for every kind of waiter.
  @inlinable @inline(__always)
  func storage<Element: Sendable>(of type: Element.Type) -> UnsafeMutablePointer<Element?> {
    if pointee.job == nil { return callbackSlot(of: type) }
    return valueWaiter.pointee.storage.assumingMemoryBound(to: Element?.self)
  }

  @inlinable @inline(never)
  func callbackSlot<Element: Sendable>(of type: Element.Type) -> UnsafeMutablePointer<Element?> {
    pointee.callback._withUnsafeGuaranteedRef {
      unsafeDowncast($0, to: AsyncReceiver<Element>.self).storage
    }
  }
}

extension UnsafeMutablePointer {
  /// Moves the value out of the memory and leaves nil there.
  @inlinable @inline(__always)
  func take<Value>() -> Value? where Pointee == Value? { pointee.take() }
}
