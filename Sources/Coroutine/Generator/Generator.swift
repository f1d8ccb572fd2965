import Synchronization

/// What one step gave: a value from a yield, or the body's result.
public enum Step<Element, Return> {
  /// The body is at a yield.
  case yielded(Element)
  /// The body has returned.
  case returned(Return)
}

extension Step: Equatable where Element: Equatable, Return: Equatable {}
extension Step: Sendable where Element: Sendable, Return: Sendable {}

/// A sequence that is computed by straight-line code: the body runs up to a yield, stops there, and goes on at the next step.
///
/// Runs on the consumer's turn by a direct stack switch: no queue, no scheduler, any call depth. Lazy: it starts at the first
/// step. Usable anywhere, on any thread, from async code as well, by one at a time; between two steps it may be handed to
/// another thread. Dropped unfinished, ``GeneratorClosed`` is raised at the pending yield, so that every `defer` runs.
///
/// When the body waits (``co_delay(_:)``, a channel), the consumer's coroutine suspends, and others on its queue run; what
/// is awaited is never delivered to the consumer. Off a coroutine the wait throws ``CoroutineError/notInCoroutine`` into
/// the body. The body's ``CoroutineLocal`` bindings are those of the first step and its own.
public final class Generator<Element, Input, Return>: Sequence, IteratorProtocol {
  // Destroying what is stored needs no generic metadata: a deinit is never specialised, and looking it up takes long.
  @exclusivity(unchecked) @usableFromInline final var storage: GeneratorRecord

  /// The record's address, which stays the same for the object's life, and keeps nothing alive: whoever switches by it
  /// holds the object until it is back.
  ///
  /// The optimiser may put an object that nobody keeps on the stack, and does not know that the body's side changes the
  /// record: what is read of it after a switch has been handed to a function that is not inlined.
  // Sound because a final stored property without observers lies in the object itself, and an object does not move.
  @inlinable final var record: GeneratorRef {
    @inline(__always) get { withUnsafeMutablePointer(to: &storage) { $0 } }
  }

  /// Creates a generator; `body` does not start before the first step.
  ///
  /// - Parameters:
  ///   - stack: How much stack the body may use. Taken at the start, given back at the end.
  ///   - file: Where it is made, for last words and reports.
  ///   - line: The line where it is made.
  ///   - body: Gets what it yields with. What it returns is the last step's result; what it throws ends the sequence.
  @inlinable
  public convenience init(
    stack: StackSize = .standard,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping (Yielder<Element, Input>) throws -> Return
  ) {
    self.init(stack, LaunchSite(file: file, line: line)) { yielder in
      Self.end(yielder, try body(yielder))
    }
  }

  /// For a body that takes care of its result, which a body without one does by returning.
  ///
  /// Separate, because a closure whose result is generic is wrapped for it, and the wrapping is an allocation.
  @inlinable
  init(_ stack: StackSize, _ launchSite: LaunchSite, _ body: @escaping (Yielder<Element, Input>) throws -> Void) {
    storage = GeneratorRecord(stackBytes: stack.byteCount, launchSite: launchSite, body: GeneratorBody(body))
  }

  @inlinable deinit { GeneratorRecord.tearDown(record) }

  /// Keeps what the body has returned.
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

  /// How it ended, once it has.
  @inlinable
  func result() throws -> Return {
    guard record.pointee.ending == .returned else { throw GeneratorRecord.error(of: record) }
    // A value that takes no room can be read anywhere.
    let address = record.pointee.result ?? UnsafeMutableRawPointer(record)
    return address.assumingMemoryBound(to: Return.self).pointee
  }

  /// The element that a step's address leads to, or how it ended.
  @inlinable @inline(__always)
  func take(_ answer: UnsafeMutableRawPointer?) throws -> Step<Element, Return> {
    guard let answer else { return .returned(try result()) }
    let element = answer.assumingMemoryBound(to: Element.self).move()
    GeneratorRecord.park(record)
    return .yielded(element)
  }

  // MARK: Stepping

  /// The next value; nil at the end and for ever after.
  ///
  /// A failure ends the sequence and stays in ``failure``. After ``close()`` nil. May be called anywhere. Suspends the calling coroutine if, and as long as, the body waits; cancellation is thrown into the body there. Called by
  /// the generator's own body, or by another coroutine of the same queue while the body waits, it traps: use ``step()``, which
  /// throws.
  @inlinable @inline(__always)
  public func next() -> Element? {
    // Inlined, its last use of `self` is the record's address: without this the caller might release it before the switch.
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

  /// One step, up to the next yield or the end.
  ///
  /// The pending yield returns nil. After the end: the same `.returned` again, or the same failure thrown again; closed, it
  /// throws ``GeneratorClosed``. May be called anywhere. Suspends the calling coroutine if, and as long as, the body waits; cancellation is thrown into the body there. Called by
  /// the generator's own body, or by another coroutine of the same queue while the body waits, it throws
  /// ``CoroutineError/alreadyRunning``; from two threads at once it traps.
  @inlinable @inline(__always)
  public func step() throws -> Step<Element, Return> {
    defer { withExtendedLifetime(self) {} }
    return try take(GeneratorRecord.resume(record, nil))
  }

  /// As ``step()``; the pending yield returns `input`.
  ///
  /// At the first step there is none: `input` is dropped. Suspends, and may be called, as ``step()``.
  @inlinable @inline(__always)
  public func step(_ input: consuming Input) throws -> Step<Element, Return> {
    defer { withExtendedLifetime(self) {} }
    var sent: Input? = input
    return try withUnsafeMutablePointer(to: &sent) { sent in
      try take(GeneratorRecord.resume(record, UnsafeMutableRawPointer(sent)))
    }
  }

  /// As ``step()``; the pending yield throws `error`.
  ///
  /// Before the first step the body never runs, and `error` is what it ended with; there, and after the end, `error` is thrown
  /// here. Suspends, and may be called, as ``step()``.
  @inlinable
  public func `throw`(_ error: any Error) throws -> Step<Element, Return> {
    defer { withExtendedLifetime(self) {} }
    return try take(GeneratorRecord.raise(record, error))
  }

  /// Raises GeneratorClosed at the pending yield, so that every `defer` runs; dropping the last reference does the same.
  ///
  /// Before the first step the body never runs; after the end nothing happens. Suspends the calling coroutine if the body's
  /// cleanup waits. When the last reference is dropped nothing can suspend: waits then throw
  /// ``CoroutineError/notInCoroutine``. An error of the body's own stays in ``failure``. A body that yields again gets
  /// GeneratorClosed again, and after 100 times the program is ended with a sentence. Called while the body runs it traps.
  public func close() {
    defer { withExtendedLifetime(self) {} }
    GeneratorRecord.close(record)
  }

  // MARK: Looking

  /// Whether the body has ended or never will run.
  ///
  /// The stack has been given back. Never suspends; may be read anywhere.
  public var isFinished: Bool { record.pointee.claim.load(ordering: .acquiring) == GeneratorState.finished }

  /// What the body has thrown.
  ///
  /// A failure that nobody has seen, here or from a step, is reported to ``CoroutineRuntime/onUnhandledError`` when the
  /// generator is dropped, unless it is the cancellation of the coroutine that made the step. Being closed is no failure.
  public var failure: (any Error)? {
    guard isFinished else { return nil }
    record.pointee.isObserved = true
    return record.pointee.failure
  }
}

/// A sequence of what `body` yields: a generator without inputs and without a result.
///
/// Lazy, and driven by the consumer: see ``Generator``. Does not suspend; may be called anywhere.
@inlinable
public func co_sequence<Element>(
  of type: Element.Type = Element.self,
  stack: StackSize = .standard,
  file: StaticString = #fileID,
  line: UInt = #line,
  _ body: @escaping (Yielder<Element, Never>) throws -> Void
) -> Generator<Element, Never, Void> { Generator(stack, LaunchSite(file: file, line: line), body) }
