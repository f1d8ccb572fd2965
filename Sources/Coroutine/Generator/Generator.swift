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
