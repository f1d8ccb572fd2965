public import CCoroutine

/// Passes values from a generator's body to the consumer.
///
/// It works only inside that body, at any depth of calls and closures. Anywhere else, and after the body's end, using
/// it traps with a message.
///
/// A yielder is two plain words, so a capture retains nothing. A reference to the generator's object would cost a
/// retain and a release in every closure that is passed down a recursion, which is more than the switch itself.
public struct Yielder<Element, Input> {
  @usableFromInline let context: UnsafeMutablePointer<cco_context>
  /// Identifies one body.
  @usableFromInline let serial: UInt64

  @inlinable
  init(_ record: GeneratorRef) {
    context = record.pointee.context.unsafelyUnwrapped
    serial = context.pointee.serial
  }

  /// The record.
  ///
  /// The caller is the body's first frame.
  @inlinable var ownRecord: GeneratorRef {
    context.pointee.argument.unsafelyUnwrapped.assumingMemoryBound(to: GeneratorRecord.self)
  }

  /// Returns the record of the running body.
  ///
  /// Traps if this yielder does not belong to it. Nothing is read before the caller's own address, `here`, shows that
  /// this may be the right stack: after the body's end the stack may have been freed. (Sanitizers keep variables
  /// elsewhere; under them the other checks apply.)
  @inlinable @inline(__always)
  func checkedRecord(at here: UnsafeRawPointer) -> GeneratorRef {
    guard UInt(bitPattern: context) &- UInt(bitPattern: here) < 16 << 20 || cco_facts.careful != 0,
      context.pointee.serial == serial, let record = context.pointee.argument
    else { GeneratorRecord.refuse(CCO_NOT_RUNNING) }
    return record.assumingMemoryBound(to: GeneratorRecord.self)
  }

  /// Passes a value to the consumer, and stops the body until the next step.
  ///
  /// It does not suspend a coroutine: it switches to the consumer, which may be in a coroutine or not. After
  /// ``GeneratorClosedError``, clean up and let the error end the body. If the body yields again, the yield throws it
  /// again, and after 100 times the program ends with a message.
  ///
  /// - Returns: The input of the next step, or nil if that step has none.
  /// - Throws: The error of ``Generator/throw(_:)``; ``GeneratorClosedError`` if the generator is closed or released;
  ///   ``CoroutineError/yieldInsideScope`` inside a deadline, shield, scope, co_pinned or co_isolated that the body has
  ///   entered, and while it holds a lock.
  @inlinable @inline(__always) @discardableResult
  public func callAsFunction(_ element: consuming Element) throws -> Input? {
    // Moved, not copied: the body's stack must not keep alive what the consumer has received.
    var element: Element? = element
    var message: UnsafeMutableRawPointer?
    let record = withUnsafeMutablePointer(to: &message) { checkedRecord(at: UnsafeRawPointer($0)) }
    LockCheck.mayYield()
    withUnsafeTemporaryAllocation(of: Element.self, capacity: 1) { storage in
      let storage = storage.baseAddress.unsafelyUnwrapped
      storage.initialize(to: element.take().unsafelyUnwrapped)
      let status = cco_suspend(context, storage, &message)
      if status != CCO_OK { GeneratorRecord.refuse(status) }
      // If it was not refused, the consumer has moved the element out.
      if UInt(bitPattern: message) == GeneratorMessage.refuse { storage.deinitialize(count: 1) }
    }
    guard let message else { return nil }
    if UInt(bitPattern: message) <= GeneratorMessage.refuse {
      // Most bodies end now.
      cco_expect_returns(context)
      throw record.pointee.raised.take().unsafelyUnwrapped
    }
    return message.assumingMemoryBound(to: Input?.self).pointee.take()
  }

  /// Delegates to `inner`: its values go directly to the consumer, and inputs and errors go directly to `inner`.
  ///
  /// A step costs the same at any depth of nested delegations. A generator that has already ended contributes no
  /// values. Closing the outer generator closes the inner one.
  ///
  /// - Returns: The result of `inner`.
  /// - Throws: The failure of `inner`; ``CoroutineError/alreadyRunning`` if `inner` is this generator itself, or a
  ///   generator that is already being delegated to.
  @inlinable @discardableResult
  public func all<R>(of inner: Generator<Element, Input, R>) throws -> R {
    var here: UInt8 = 0
    let record = withUnsafeMutablePointer(to: &here) { checkedRecord(at: UnsafeRawPointer($0)) }
    defer { withExtendedLifetime(inner) {} }
    try GeneratorRecord.delegate(record, to: inner.record)
    return try inner.result()
  }

  /// Yields the values of a generator with another input type, which gets no inputs.
  ///
  /// Errors that are thrown at these yields go to `inner`.
  @inlinable @discardableResult
  public func all<I, R>(of inner: Generator<Element, I, R>) throws -> R {
    var step = try inner.step()
    while case .yielded(let element) = step {
      do {
        try self(element)
      } catch {
        if error is GeneratorClosedError { inner.close() }
        step = try inner.throw(error)
        continue
      }
      step = try inner.step()
    }
    return try inner.result()
  }

  /// Yields every element.
  @inlinable
  public func all(of elements: some Sequence<Element>) throws {
    for element in elements { try self(element) }
  }
}
