public import Dispatch

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
