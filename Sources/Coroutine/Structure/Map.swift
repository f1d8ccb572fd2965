/// Runs `body` for each element in a coroutine, at most `limit` at the same time, and returns the results in the order
/// of the elements.
///
/// ```swift
/// let pages = try co_map(urls, limit: 8) { url in try fetch(url) }
/// ```
///
/// Suspends until all have ended. The first failure cancels the others, no further element begins, and it is thrown
/// when they have ended, as by ``co_scope(failures:_:)``. If the coroutine is cancelled, so are they, and the
/// cancellation error is thrown. Each element gets a coroutine, which runs where the caller does. The caller takes an
/// element when there is room for it, so a source without an end is read no further than `limit` elements ahead.
///
/// - Parameters:
///   - elements: The elements. A generator that fails fails the call, as one of its elements would.
///   - limit: The largest number of elements that are worked on at the same time.
///   - name: The name of the coroutines in dumps.
///   - file: The launch site, for dumps and reports.
///   - line: The line of the launch site.
///   - body: Works on one element; it may wait.
/// - Throws: The first failure, of an element or of the source; the cancellation error; ``CoroutineError/invalidCount(_:)`` if the limit is below one;
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
  let work = MapWork<Output>(limit)
  try co_scope { scope in
    for element in elements {
      try co_checkCancelled()
      let index = work.begin()
      scope.launch(name: name, file: file, line: line) {
        defer { work.end() }
        work.put(try body(element), at: index)
      }
      try work.waitForRoom()
    }
    try elements.throwFailure()
  }
  return work.results
}

/// What has become of the elements of one `co_map`.
///
/// Invariants, under the lock
///  1. `active` is the number of elements that have begun and not ended.
///  2. `room` is set while the caller waits because `active` is at the limit. The end that lowers it takes `room`.
private final class MapWork<Output: Sendable>: @unchecked Sendable {
  // Sound because all that changes is accessed under the lock.
  private let limit: Int
  private let lock = Shared<ThreadLock>()
  @exclusivity(unchecked) private var active = 0
  @exclusivity(unchecked) private var room: Resumer<Void>?
  @exclusivity(unchecked) private var outputs: [Output?] = []

  init(_ limit: Int) { self.limit = limit }

  /// Begins an element, and returns its index.
  func begin() -> Int {
    lock.withLock {
      active += 1
      outputs.append(nil)
      return outputs.count - 1
    }
  }

  func end() {
    let room = lock.withLock {
      active -= 1
      return self.room.take()
    }
    room?.resume(())
  }

  /// Suspends the caller until another element may begin.
  func waitForRoom() throws {
    if lock.withLock({ active < limit }) { return }
    try co_suspend { (done: Resumer<Void>) in
      let hasRoom = lock.withLock {
        if active >= limit { room = done }
        return active < limit
      }
      if hasRoom { done.resume(()) }
    }
  }

  func put(_ output: Output, at index: Int) { lock.withLock { outputs[index] = output } }

  /// All outputs, when every element has one.
  var results: [Output] { lock.withLock { outputs.map { $0.unsafelyUnwrapped } } }
}
