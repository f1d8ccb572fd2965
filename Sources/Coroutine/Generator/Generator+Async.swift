public import Dispatch

// A generator and Swift's async code, in both directions. Each step, or each element, is one hop: the body of a generator and
// an async iterator both keep their place between two hops, and only one hop is under way at a time.

/// Carries what is not Sendable over a hop.
@usableFromInline
struct GeneratorCargo<Value>: @unchecked Sendable {
  // Sound because whoever sends one waits for the hop's end before it touches the value again, or never touches it again.
  @usableFromInline let value: Value
  @usableFromInline init(_ value: Value) { self.value = value }
}

extension Generator {
  /// This generator for async code: `for try await x in generator.asyncElements()`; see ``GeneratorAsyncElements``.
  ///
  /// - Parameter queue: Where the body goes on after it has waited; nil: on the shared scheduler. Up to its first wait a
  ///   step runs where the Task runs.
  public func asyncElements(on queue: DispatchQueue? = nil) -> GeneratorAsyncElements<Element, Input, Return> {
    GeneratorAsyncElements(generator: self, queue: queue)
  }
}

/// A generator as an asynchronous sequence: each element is a step, made in a coroutine, so that the body may wait.
///
/// The Task is suspended meanwhile and no thread is held. A failure of the body is thrown; the result is dropped.
///
/// Cancelling the Task cancels the wait that the body is in, which throws there; between two elements the next one throws
/// CancellationError and leaves the generator as it is. Use the generator itself only while no element is awaited.
public struct GeneratorAsyncElements<Element, Input, Return>: AsyncSequence {
  let generator: Generator<Element, Input, Return>
  let queue: DispatchQueue?

  /// Makes the steps.
  public struct AsyncIterator: AsyncIteratorProtocol {
    let generator: Generator<Element, Input, Return>
    let queue: DispatchQueue?

    /// The next element; nil after the body has returned.
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

  /// An iterator that steps the one generator: several iterators share its elements.
  public func makeAsyncIterator() -> AsyncIterator { AsyncIterator(generator: generator, queue: queue) }
}

/// Where a Task fetches elements for a coroutine.
///
/// A class of the element alone: the iterator's type need not be Sendable.
private class Fetcher<Element: Sendable>: @unchecked Sendable {
  // Sound because it has no state of its own.
  func next() async throws -> Element? { nil }
}

private final class IteratorBox<Iterator: AsyncIteratorProtocol>: Fetcher<Iterator.Element>, @unchecked Sendable
where Iterator.Element: Sendable {
  // Sound because a hop has ended before the next begins; one that was cancelled is the last.
  private var iterator: Iterator

  init(_ iterator: Iterator) { self.iterator = iterator }

  override func next() async throws -> Iterator.Element? {
    var current = iterator
    defer { iterator = current }
    return try await current.next()
  }
}

/// The elements of an asynchronous sequence as a generator, for coroutines: each step awaits one element.
///
/// Lazy: the sequence is asked for its iterator at the first step. A step suspends the calling coroutine until the element is
/// there; cancelled, it cancels the Task that fetches it and throws. An error of the sequence ends the generator with it.
/// Closing or dropping the generator drops the iterator. Off a coroutine a step throws ``CoroutineError/notInCoroutine``.
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
