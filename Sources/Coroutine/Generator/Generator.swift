public import CCoroutine
public import Dispatch
import Synchronization

/// The result of one step: a value from a yield, or the body's return value.
public enum GeneratorStep<Element, Return> {
  /// The body has yielded a value.
  case yielded(Element)
  /// The body has returned.
  case returned(Return)
}

extension GeneratorStep: Equatable where Element: Equatable, Return: Equatable {}
extension GeneratorStep: Sendable where Element: Sendable, Return: Sendable {}

/// A sequence that straight-line code computes: the body runs to a yield, stops there, and continues at the next step.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/ArticleSnippets.swift -->
/// ```swift
/// let talk = Generator<String, String, String> { yield in
///   var command: String?
///   repeat {
///     try yield("Hello")
///     command = try yield("Over")
///   } while command == "again"
///   return "talk done"
/// }
/// while case .yielded(let line) = try talk.step() { print(line) }
/// ```
///
/// - A step switches the stack directly, on the consumer's thread. It needs no queue and no scheduler, and works at any
///   call depth.
/// - A generator is lazy: the body starts at the first step.
/// - A generator may be used anywhere, on any thread, and in async code, by one user at a time. Between two steps it
///   may be passed to another thread.
/// - A `for` loop cannot throw the error of a body that fails: it ends, as if the elements were all. Loop over
///   ``step()``, or look at ``failure`` after the loop.
/// - If an unfinished generator is released, ``GeneratorClosedError`` is thrown at the pending yield, so that every
///   `defer` runs.
///
/// If the body waits (``co_delay(_:)``, a channel), the consumer's coroutine suspends, and other coroutines of its
/// queue run. The awaited value goes to the body, never to the consumer. Outside a coroutine the wait throws
/// ``CoroutineError/notInCoroutine`` into the body. The body sees the ``CoroutineLocal`` bindings and the task-locals
/// that are bound where the generator is created, and its own.
public final class Generator<Element, Input, Return>: Sequence, IteratorProtocol {
  // Destroying the storage needs no generic metadata: a deinit is never specialised, and the lookup takes long.
  @exclusivity(unchecked) @usableFromInline final var storage: GeneratorRecord

  /// The record's address, which is constant for the object's life.
  ///
  /// The address does not keep the object alive. A thread that switches through it holds the object until it has
  /// returned.
  ///
  /// The optimiser may put an unretained object on the stack, and does not know that the body's side changes the
  /// record. Therefore whatever is read from the record after a switch is read in a function that is not inlined.
  // Sound because a final stored property without observers lies in the object itself, and an object does not move.
  @inlinable final var record: GeneratorRef {
    @inline(__always) get { withUnsafeMutablePointer(to: &storage) { $0 } }
  }

  /// Creates a generator.
  ///
  /// `body` does not start before the first step.
  ///
  /// - Parameters:
  ///   - stack: The size of the body's stack. The stack is taken at the start, and given back at the end.
  ///   - file: The launch site, for overflow reports and other reports.
  ///   - line: The line of the launch site.
  ///   - body: Computes the sequence. It gets the yielder. Its return value is the result of the last step; an error
  ///     that it throws ends the sequence.
  @inlinable
  public convenience init(
    stack: StackSize = .standard,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping (Yielder<Element, Input>) throws -> Return
  ) {
    self.init(stack, LaunchSite(file: file, line: line), GeneratorRecord.inherited()) { yielder in
      Self.end(yielder, try body(yielder))
    }
  }

  /// Creates a generator whose body stores its own result.
  ///
  /// A body without a result returns. This initialiser is separate because Swift wraps a closure whose result is
  /// generic, and the wrapper is an allocation.
  @inlinable
  init(
    _ stack: StackSize,
    _ launchSite: LaunchSite,
    _ inheritance: GeneratorInheritance,
    _ body: @escaping (Yielder<Element, Input>) throws -> Void
  ) {
    storage = GeneratorRecord(
      stackBytes: stack.byteCount,
      launchSite: launchSite,
      inheritance: inheritance,
      body: GeneratorBody(body)
    )
  }

  @inlinable deinit { GeneratorRecord.tearDown(record) }

  /// Stores the body's return value.
  @inlinable @inline(__always)
  static func end(_ yielder: Yielder<Element, Input>, _ value: consuming Return) {
    let record = yielder.ownRecord
    if MemoryLayout<Return>.size > 0 || !_isPOD(Return.self) {
      let result = UnsafeMutablePointer<Return>.allocate(capacity: 1)
      result.initialize(to: value)
      record.pointee.result = UnsafeMutableRawPointer(result)
      record.pointee.freeResult = {
        let result = $0.assumingMemoryBound(to: Return.self)
        result.deinitialize(count: 1)
        result.deallocate()
      }
    }
  }

  /// Returns the body's return value, or throws its failure.
  ///
  /// Called after the end.
  @inlinable
  func result() throws -> Return {
    guard record.pointee.ending == .returned else { throw GeneratorRecord.error(of: record) }
    // A value of size zero can be read from any address.
    let address = record.pointee.result ?? UnsafeMutableRawPointer(record)
    return address.assumingMemoryBound(to: Return.self).pointee
  }

  /// Takes the element at the address that a step has returned.
  ///
  /// A nil address means the end.
  @inlinable @inline(__always)
  func take(_ answer: UnsafeMutableRawPointer?) throws -> GeneratorStep<Element, Return> {
    guard let answer else { return .returned(try result()) }
    let element = answer.assumingMemoryBound(to: Element.self).move()
    GeneratorRecord.park(record)
    return .yielded(element)
  }

  // MARK: Stepping

  /// Returns the next value, or nil at the end and for ever after.
  ///
  /// A failure ends the sequence, and stays in ``failure``. After ``close()`` the result is nil. May be called
  /// anywhere. Suspends the calling coroutine while the body waits; there, cancellation is thrown into the body. Traps
  /// if the generator's own body calls it, or another coroutine of the same queue while the body waits. ``step()``
  /// throws instead.
  @inlinable @inline(__always)
  public func next() -> Element? {
    // Inlined, its last use of `self` is the record's address. Without this, the caller might release `self` before the
    // switch.
    defer { withExtendedLifetime(self) {} }
    do {
      guard let answer = try GeneratorRecord.resume(record, nil) else { return nil }
      let element = answer.assumingMemoryBound(to: Element.self).move()
      GeneratorRecord.park(record)
      return element
    } catch {
      GeneratorRecord.refuse(error)
    }
  }

  /// Runs the body to the next yield or the end.
  ///
  /// The pending yield returns nil to the body. After the end, the call returns the same `.returned` again, or throws
  /// the same failure again. After ``close()`` it throws ``GeneratorClosedError``.
  ///
  /// May be called anywhere. Suspends the calling coroutine while the body waits; there, cancellation is thrown into
  /// the body. Throws ``CoroutineError/alreadyRunning`` if the generator's own body calls it, or another coroutine of
  /// the same queue while the body waits. Traps if two threads call it at once.
  @inlinable @inline(__always)
  public func step() throws -> GeneratorStep<Element, Return> {
    defer { withExtendedLifetime(self) {} }
    return try take(GeneratorRecord.resume(record, nil))
  }

  /// Runs the body to the next yield or the end.
  ///
  /// The pending yield returns `input` to the body. At the first step there is no pending yield, and `input` is
  /// dropped. In all other respects it behaves as ``step()`` does.
  @inlinable @inline(__always)
  public func step(_ input: consuming Input) throws -> GeneratorStep<Element, Return> {
    defer { withExtendedLifetime(self) {} }
    var sent: Input? = input
    return try withUnsafeMutablePointer(to: &sent) { sent in
      try take(GeneratorRecord.resume(record, UnsafeMutableRawPointer(sent)))
    }
  }

  /// Runs the body to the next yield or the end.
  ///
  /// The pending yield throws `error`. Before the first step the body never runs: the generator ends with `error`.
  /// Before the first step and after the end, `error` is thrown to the caller. In all other respects it behaves as
  /// ``step()`` does.
  @inlinable
  public func `throw`(_ error: any Error) throws -> GeneratorStep<Element, Return> {
    defer { withExtendedLifetime(self) {} }
    return try take(GeneratorRecord.raise(record, error))
  }

  /// Throws ``GeneratorClosedError`` at the pending yield, so that every `defer` runs.
  ///
  /// - Releasing the last reference does the same.
  /// - Before the first step, the body never runs. After the end, nothing happens.
  /// - It suspends the calling coroutine if the body's cleanup waits. During the release of the last reference nothing
  ///   can suspend: waits then throw ``CoroutineError/notInCoroutine``.
  /// - An error that the body itself throws stays in ``failure``.
  /// - If the body yields again, the yield throws ``GeneratorClosedError`` again. After 100 times the program ends with
  ///   a message.
  /// - The call traps while the body runs.
  public func close() {
    defer { withExtendedLifetime(self) {} }
    GeneratorRecord.close(record)
  }

  // MARK: Inspection

  /// Whether the body has ended or will never run.
  ///
  /// If so, the stack has been given back. Never suspends. May be read anywhere.
  public var isFinished: Bool { record.pointee.claim.load(ordering: .acquiring) == GeneratorState.finished }

  /// The error that the body has thrown, or nil.
  ///
  /// A failure that nothing has observed, here or in a step, is reported to ``CoroutineRuntime/unhandledErrorHandler``
  /// when the generator is released, unless it is the cancellation of the coroutine that made the step. Closing is not
  /// a failure.
  public var failure: (any Error)? {
    guard isFinished else { return nil }
    record.pointee.isObserved = true
    return record.pointee.failure
  }
}

/// Creates a sequence of the values that `body` yields: a generator without inputs and without a result.
///
/// It is lazy, and driven by the consumer; see ``Generator``. Does not suspend. May be called anywhere.
@inlinable
public func co_sequence<Element>(
  of type: Element.Type = Element.self,
  stack: StackSize = .standard,
  file: StaticString = #fileID,
  line: UInt = #line,
  _ body: @escaping (Yielder<Element, Never>) throws -> Void
) -> Generator<Element, Never, Void> {
  Generator(stack, LaunchSite(file: file, line: line), GeneratorRecord.inherited(), body)
}

extension Generator: FallibleSource {}

// MARK: - Yielder

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
  ///
  /// - Throws: The error of a yield; the failure of `elements`, if they are a generator that fails.
  @inlinable
  public func all(of elements: some Sequence<Element>) throws {
    for element in elements { try self(element) }
    try elements.throwFailure()
  }
}

// MARK: - Async code

// Generators in async code, and async sequences as generators. Each step, or each element, is one hop. The body of a
// generator and an async iterator both keep their state between two hops, and only one hop runs at a time.

/// Carries a value that is not Sendable to another thread and back.
@usableFromInline
struct GeneratorCargo<Value>: @unchecked Sendable {
  // Sound because the sender waits for the hop's end before it touches the value again, or never touches it again.
  @usableFromInline let value: Value
  @usableFromInline init(_ value: Value) { self.value = value }
}

extension Generator {
  /// Returns this generator as an async sequence: `for try await x in generator.asyncElements()`.
  ///
  /// Each element is a step in a coroutine, so the body may wait. During a step the Task is suspended, and no thread is
  /// blocked. A failure of the body is thrown. The body's result is dropped.
  ///
  /// Cancelling the Task cancels the body's current wait, which throws in the body. If the Task is cancelled between
  /// two elements, the next call throws CancellationError and leaves the generator as it is. Use the generator itself
  /// only while no element is awaited.
  ///
  /// - Parameter queue: The queue on which the body continues after it has waited. Nil means the shared scheduler. Up
  ///   to its first wait, a step runs where the Task runs.
  /// - Returns: The sequence. Its iterators share the elements.
  public func asyncElements(on queue: DispatchQueue? = nil) -> _GeneratorAsyncElements<Element, Input, Return> {
    _GeneratorAsyncElements(generator: self, queue: queue)
  }
}

/// A generator as an async sequence: the result of ``Generator/asyncElements(on:)``, which programs need not name.
public struct _GeneratorAsyncElements<Element, Input, Return>: AsyncSequence {
  let generator: Generator<Element, Input, Return>
  let queue: DispatchQueue?

  /// Steps the generator.
  public struct AsyncIterator: AsyncIteratorProtocol {
    let generator: Generator<Element, Input, Return>
    let queue: DispatchQueue?

    /// Returns the next element, or nil after the body has returned.
    public mutating func next() async throws -> Element? {
      try Task.checkCancellation()
      let cargo = GeneratorCargo(generator)
      let step = co_launch(on: queue, name: "generator step", start: .immediate) {
        GeneratorCargo(try cargo.value.step())
      }
      if case .yielded(let element) = try await step.value.value { return element }
      return nil
    }
  }

  /// Closes the generator, in a coroutine: its body is resumed with ``GeneratorClosedError``, and its cleanup may wait.
  ///
  /// For a loop that ends early: after a `break`, the body is still at its yield, and the release of the generator runs
  /// its cleanup where nothing may wait.
  ///
  /// ```swift
  /// let rows = query.rows().asyncElements()
  /// for try await row in rows where row.isWanted { break }
  /// await rows.close()          // the body's `defer` gives the connection back, which waits
  /// ```
  ///
  /// Returns when the body has ended. The cleanup is not cancelled with the Task. Has no effect if the body has ended.
  /// Traps during a step, as ``Generator/close()`` does.
  public func close() async {
    let cargo = GeneratorCargo(generator)
    let closing = co_launch(on: queue, name: "generator close", start: .immediate) {
      Carrier.current?.pointee.job?.withShield { cargo.value.close() }
    }
    // It does not fail: the shield hides the cancellation that the Task passes on.
    _ = try? await closing.value
  }

  /// Returns an iterator that steps the generator.
  ///
  /// Several iterators share its elements.
  public func makeAsyncIterator() -> AsyncIterator { AsyncIterator(generator: generator, queue: queue) }
}

/// Fetches elements in a Task for a coroutine.
///
/// The class is generic in the element alone, because the iterator's type need not be Sendable.
private class Fetcher<Element: Sendable>: @unchecked Sendable {
  // Sound because it has no state of its own.
  func next() async throws -> Element? { nil }
}

private final class IteratorBox<Iterator: AsyncIteratorProtocol>: Fetcher<Iterator.Element>, @unchecked Sendable
where Iterator.Element: Sendable {
  // Sound because a hop has ended before the next begins, and no hop follows a cancelled one.
  private var iterator: Iterator

  init(_ iterator: Iterator) { self.iterator = iterator }

  override func next() async throws -> Iterator.Element? {
    var current = iterator
    defer { iterator = current }
    return try await current.next()
  }
}

/// Returns the elements of an async sequence as a generator for coroutines.
///
/// Each step awaits one element.
///
/// - It is lazy: the first step creates the sequence's iterator.
/// - A step suspends the calling coroutine until the element has arrived. If the coroutine is cancelled, the step
///   cancels the Task that fetches the element, and throws.
/// - An error of the sequence ends the generator with that error.
/// - Closing or releasing the generator releases the iterator.
/// - Outside a coroutine, a step throws ``CoroutineError/notInCoroutine``.
public func co_sequence<Elements: AsyncSequence>(
  _ elements: sending Elements,
  file: StaticString = #fileID,
  line: UInt = #line
) -> Generator<Elements.Element, Never, Void> where Elements.Element: Sendable {
  let cargo = GeneratorCargo(elements)
  return co_sequence(file: file, line: line) { yield in
    let fetcher: Fetcher<Elements.Element> = IteratorBox(cargo.value.makeAsyncIterator())
    while let element = try co_await({ try await fetcher.next() }) { try yield(element) }
  }
}
