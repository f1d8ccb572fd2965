/// Runs `body` for each element in a coroutine, at most `limit` at the same time, and returns the results in the order
/// of the elements.
///
/// ```swift
/// let pages = try co_map(urls, limit: 8) { url in try fetch(url) }
/// ```
///
/// Suspends until all have ended. The first failure cancels the others, no further element begins, and it is thrown
/// when they have ended, as by ``co_scope(failures:_:)``. If the coroutine is cancelled, so are they, and the
/// cancellation error is thrown. `min(limit, elements.count)` coroutines are launched, which run where the caller does;
/// each takes the next element when it has done one.
///
/// - Parameters:
///   - elements: The elements.
///   - limit: The largest number of elements that are worked on at the same time.
///   - name: The name of the coroutines in dumps.
///   - file: The launch site, for dumps and reports.
///   - line: The line of the launch site.
///   - body: Works on one element; it may wait.
/// - Throws: The first failure; the cancellation error; ``CoroutineError/invalidCount(_:)`` if the limit is below one;
///   ``CoroutineError/notInCoroutine`` outside a coroutine.
@available(*, noasync, message: "use `withThrowingTaskGroup`, or await the `value` of a coroutine that does this")
public func co_map<Element: Sendable, Output: Sendable>(
  _ elements: some Sequence<Element>,
  limit: Int,
  name: String? = nil,
  file: StaticString = #fileID,
  line: UInt = #line,
  _ body: @escaping @Sendable (Element) throws -> Output
) throws -> [Output] {
  if limit < 1 { throw CoroutineError.invalidCount(limit) }
  _ = try Carrier.beginWaiting()
  let work = MapWork<Element, Output>(Array(elements))
  try co_scope { scope in
    for _ in 0..<min(limit, work.elements.count) {
      scope.launch(name: name, file: file, line: line) {
        while let index = work.next() {
          try co_checkCancelled()
          work.put(try body(work.elements[index]), at: index)
        }
      }
    }
  }
  return work.results
}

/// The elements of one `co_map`, and what has become of them.
private final class MapWork<Element: Sendable, Output: Sendable>: @unchecked Sendable {
  // Sound because `taken` and `outputs` are accessed under the lock.
  let elements: [Element]
  private let lock = Shared<ThreadLock>()
  @exclusivity(unchecked) private var taken = 0
  @exclusivity(unchecked) private var outputs: [Output?]

  init(_ elements: [Element]) {
    self.elements = elements
    outputs = Array(repeating: nil, count: elements.count)
  }

  /// The index of the next element that nobody works on.
  func next() -> Int? {
    lock.withLock {
      guard taken < elements.count else { return nil }
      taken += 1
      return taken - 1
    }
  }

  func put(_ output: Output, at index: Int) { lock.withLock { outputs[index] = output } }

  /// All outputs, when every element has one.
  var results: [Output] { lock.withLock { outputs.map { $0.unsafelyUnwrapped } } }
}
