public import CCoroutine

/// What a generator's body gives its values with.
///
/// Works only inside that body, at any depth of calls and closures; anywhere else, and after the body's end, using it traps
/// with a sentence.
///
/// Two plain words, so that capturing it retains nothing: a yielder that refers to the generator's object would cost a
/// retain and a release in every closure that is handed down a recursion, more than the switch itself.
public struct Yielder<Element, Input> {
  @usableFromInline let context: UnsafeMutablePointer<cco_context>
  /// Names one body.
  @usableFromInline let serial: UInt64

  @inlinable
  init(_ record: GeneratorRef) {
    context = record.pointee.context.unsafelyUnwrapped
    serial = context.pointee.serial
  }

  /// The record; the caller is the body's first frame.
  @inlinable var ownRecord: GeneratorRef {
    context.pointee.argument.unsafelyUnwrapped.assumingMemoryBound(to: GeneratorRecord.self)
  }

  /// The record of the running body; traps where this is not its yielder.
  ///
  /// Nothing is read before the caller's own address, `here`, says that this may be the stack in question: after the end it
  /// may be gone. (Sanitizers keep variables elsewhere; there the other checks do.)
  @inlinable @inline(__always)
  func checkedRecord(at here: UnsafeRawPointer) -> GeneratorRef {
    guard UInt(bitPattern: context) &- UInt(bitPattern: here) < 16 << 20 || cco_facts.careful != 0,
      context.pointee.serial == serial, let record = context.pointee.argument
    else { GeneratorRecord.refuse(CCO_NOT_RUNNING) }
    return record.assumingMemoryBound(to: GeneratorRecord.self)
  }

  /// Gives a value to the consumer and stops until the next step; returns what that sent, nil where it sent nothing.
  ///
  /// Does not suspend a coroutine: it switches to the consumer, which may be anywhere, also off a coroutine. Throws what
  /// ``Generator/throw(_:)`` raises, ``GeneratorClosed`` when the generator is closed or dropped, and ``YieldInsideScope``
  /// inside a deadline, shield or scope that the body has entered. After GeneratorClosed, clean up and let it end the body: a
  /// body that yields again gets it again, and after 100 times the program is ended with a sentence.
  @inlinable @inline(__always) @discardableResult
  public func callAsFunction(_ element: consuming Element) throws -> Input? {
    // Handed on, not copied: the body's stack must not keep alive what the consumer has got.
    var element: Element? = element
    var message: UnsafeMutableRawPointer?
    let record = withUnsafeMutablePointer(to: &message) { checkedRecord(at: UnsafeRawPointer($0)) }
    withUnsafeTemporaryAllocation(of: Element.self, capacity: 1) { slot in
      let slot = slot.baseAddress.unsafelyUnwrapped
      slot.initialize(to: element.take().unsafelyUnwrapped)
      let status = cco_suspend(context, slot, &message)
      if status != CCO_OK { GeneratorRecord.refuse(status) }
      // Otherwise the consumer has moved it out.
      if UInt(bitPattern: message) == GeneratorMessage.refuse { slot.deinitialize(count: 1) }
    }
    guard let message else { return nil }
    if UInt(bitPattern: message) <= GeneratorMessage.refuse {
      // Most bodies end now.
      cco_expect_returns(context)
      throw record.pointee.raised.take().unsafelyUnwrapped
    }
    return message.assumingMemoryBound(to: Input?.self).pointee.take()
  }

  /// Delegates: what `inner` yields goes straight to the consumer, inputs and errors straight to `inner`.
  ///
  /// Returns its result and throws its failure. One that has already ended contributes no values. Costs nothing a step, however deep delegations are nested. Closing the outer generator closes the inner one. Throws
  /// ``CoroutineError/alreadyRunning`` where `inner` is this very generator or one that is being delegated to.
  @inlinable @discardableResult
  public func all<R>(of inner: Generator<Element, Input, R>) throws -> R {
    var here: UInt8 = 0
    let record = withUnsafeMutablePointer(to: &here) { checkedRecord(at: UnsafeRawPointer($0)) }
    defer { withExtendedLifetime(inner) {} }
    try GeneratorRecord.delegate(record, to: inner.record)
    return try inner.result()
  }

  /// As above, for a generator that takes other inputs: it gets none.
  ///
  /// Errors that are thrown in here go to `inner`.
  @inlinable @discardableResult
  public func all<I, R>(of inner: Generator<Element, I, R>) throws -> R {
    var step = try inner.step()
    while case .yielded(let element) = step {
      do {
        try self(element)
      } catch {
        if error is GeneratorClosed { inner.close() }
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
