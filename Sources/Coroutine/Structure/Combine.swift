import Synchronization

// Waiting for several Awaitables at once, in one suspension. Each member is observed. The first outcome that decides
// resumes the waiting coroutine. Only the combinator's rule cancels members: co_any and co_race cancel the undecided
// members, and co_all cancels the siblings of a failed member. If the waiting coroutine is cancelled, it leaves each
// member as one that waits for that member alone.

private final class Gathering<Output: Sendable>: @unchecked Sendable {
  // Sound because everything mutable is under `lock`.
  enum Rule { case all, allSettled, any, race }

  private let rule: Rule
  // Not shared: the member that decides resumes the waiting coroutine, which tells.
  private let lock = ThreadLock()
  @exclusivity(unchecked) private(set) var results: [Result<Output, any Error>?]
  @exclusivity(unchecked) private var missing: Int
  @exclusivity(unchecked) private var isDecided = false

  init(_ rule: Rule, _ count: Int) {
    self.rule = rule
    results = Array(repeating: nil, count: count)
    missing = count
  }

  /// Stores a result, and returns the decision if it decides: the index of the deciding member, or -1 for all members.
  private func put(_ result: Result<Output, any Error>, _ index: Int) -> Int? {
    lock.lock()
    defer { lock.unlock() }
    guard !isDecided else { return nil }
    results[index] = result
    missing -= 1
    let succeeded = if case .success = result { true } else { false }
    let all: Int? = missing == 0 ? -1 : nil
    let decision: Int? =
      switch rule {
      case .all: succeeded ? all : index
      case .allSettled: all
      case .any: succeeded ? index : all
      case .race: index
      }
    isDecided = decision != nil
    return decision
  }

  /// Suspends until the wait is decided; throws `wouldDeadlock` if the running job is among the members.
  func wait(for members: [some Awaitable<Output>]) throws -> Int {
    // All members are jobs, or none is.
    if members.first is AnyJob, let job = Carrier.current?.pointee.job,
      members.contains(where: { ($0 as? AnyJob)?.record == job })
    {
      throw CoroutineError.wouldDeadlock(because: .joinsItself)
    }
    do { return try waitUntilDecided(members) } catch {
      // By now every observation has been cancelled.
      leave(members)
      throw error
    }
  }

  private func waitUntilDecided(_ members: [some Awaitable<Output>]) throws -> Int {
    let observations = SetOnce<[AwaitableObservation]>()
    defer { for observation in observations.value ?? [] { observation.cancel() } }
    let decided: Int = try co_suspend { done in
      observations.set(
        members.enumerated().map { index, member in
          member.observeToWait { [self] result in if let decision = put(result, index) { done.resume(decision) } }
        }
      )
    }
    if results.contains(where: { if case .failure? = $0 { true } else { false } }) { Carrier.noteFailure() }
    if rule != .allSettled {
      for (index, member) in members.enumerated() where results[index] == nil { member.cancelAwaited() }
    }
    return decided
  }
}

/// Begins a wait for `members`.
private func beginWaiting(for members: [some Awaitable]) throws {
  do { _ = try Carrier.beginWaiting() } catch {
    leave(members)
    throw error
  }
}

/// Tells the members that the coroutine, if it is cancelled, waits for them no more.
private func leave(_ members: [some Awaitable]) {
  guard co_isCancelled else { return }
  for member in members { (member as? any CompletionBacked)?.consumerWasCancelled() }
}

/// Waits until all have succeeded, and returns their values in the order of the input.
///
/// - Throws: The first failure, at once; the others are then cancelled. ``CoroutineError/wouldDeadlock`` if the calling
///   job is among them. ``CoroutineError/notInCoroutine`` outside a coroutine.
///
/// Returns `[]` for no Awaitables. Suspends. If the coroutine is cancelled, it throws, and leaves each as `co_await`
/// does. Linear in their number.
@available(*, noasync, message: "await the `value` of `Promise.all`, or use a task group")
public func co_all<Output>(_ awaitables: [some Awaitable<Output>]) throws -> [Output] {
  try beginWaiting(for: awaitables)
  guard !awaitables.isEmpty else { return [] }
  let gathering = Gathering<Output>(.all, awaitables.count)
  let decided = try gathering.wait(for: awaitables)
  if decided >= 0 { _ = try gathering.results[decided]!.get() }
  return try gathering.results.map { try $0!.get() }
}

/// Waits until all have ended, and returns their outcomes in the order of the input.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/SymbolSnippets.swift -->
/// ```swift
/// let outcomes = try co_allSettled(services.map { service in co_launch { try ping(service) } })
/// return zip(services, outcomes).compactMap { service, outcome in
///   if case .failure = outcome { service } else { nil }
/// }
/// ```
///
/// Cancels none of them. Suspends. If the coroutine is cancelled, it throws, and leaves each as `co_await` does. Throws
/// ``CoroutineError/notInCoroutine`` outside a coroutine.
@available(*, noasync, message: "await the `value` of `Promise.allSettled`, or use a task group")
public func co_allSettled<Output>(_ awaitables: [some Awaitable<Output>]) throws -> [Result<Output, any Error>] {
  try beginWaiting(for: awaitables)
  guard !awaitables.isEmpty else { return [] }
  let gathering = Gathering<Output>(.allSettled, awaitables.count)
  _ = try gathering.wait(for: awaitables)
  return gathering.results.map { $0! }
}

/// Waits for the first success, and cancels the others.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/SymbolSnippets.swift -->
/// ```swift
/// let requests = mirrors.map { mirror in co_launch { try fetch(mirror) } }
/// return try co_any(requests)
/// ```
///
/// - Throws: ``AggregateError`` if all have failed, with the failures in the order of the input, and for no Awaitables.
///   ``CoroutineError/notInCoroutine`` outside a coroutine.
///
/// Suspends. If the coroutine is cancelled, it throws, and leaves each as `co_await` does.
@available(*, noasync, message: "await the `value` of `Promise.any`, or use a task group")
public func co_any<Output>(_ awaitables: [some Awaitable<Output>]) throws -> Output {
  try beginWaiting(for: awaitables)
  guard !awaitables.isEmpty else { throw AggregateError() }
  let gathering = Gathering<Output>(.any, awaitables.count)
  let decided = try gathering.wait(for: awaitables)
  if decided >= 0 { return try gathering.results[decided]!.get() }
  throw AggregateError(
    errors: gathering.results.compactMap { if case .failure(let error)? = $0 { error } else { nil } }
  )
}

/// Waits for the first to settle, returns or throws its outcome, and cancels the others.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideSnippets.swift -->
/// ```swift
/// let mirrors = ["/slow", "/fast"].map { path in co_launch { try fetch(path) } }
/// let fastest = try co_race(mirrors)
/// ```
///
/// - Throws: ``AggregateError`` for no Awaitables. ``CoroutineError/notInCoroutine`` outside a coroutine.
///
/// Suspends. If the coroutine is cancelled, it throws, and leaves each as `co_await` does.
@available(*, noasync, message: "await the `value` of `Promise.race`, or use a task group")
public func co_race<Output>(_ awaitables: [some Awaitable<Output>]) throws -> Output {
  try beginWaiting(for: awaitables)
  guard !awaitables.isEmpty else { throw AggregateError() }
  let gathering = Gathering<Output>(.race, awaitables.count)
  let decided = try gathering.wait(for: awaitables)
  return try gathering.results[decided]!.get()
}

// MARK: - co_map

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
/// - Throws: The first failure, of an element or of the source; the cancellation error;
///   ``CoroutineError/invalidCount`` if the limit is below one; ``CoroutineError/notInCoroutine`` outside a
///   coroutine.
@available(*, noasync, message: "use `withThrowingTaskGroup`, or await the `value` of a coroutine that does this")
public func co_map<Element: Sendable, Output: Sendable>(
  _ elements: some Sequence<Element>,
  limit: Int,
  name: String? = nil,
  file: StaticString = #fileID,
  line: UInt = #line,
  _ body: @escaping @Sendable (Element) throws -> Output
) throws -> [Output] {
  var iterator = elements.makeIterator()
  return try mapElements(limit, name, file, line, body) {
    if let element = iterator.next() { return element }
    try elements.throwFailure()
    return nil
  }
}

/// What `co_map` does, over a source that `next` reads.
func mapElements<Element: Sendable, Output: Sendable>(
  _ limit: Int,
  _ name: String?,
  _ file: StaticString,
  _ line: UInt,
  _ body: @escaping @Sendable (Element) throws -> Output,
  next: () throws -> Element?
) throws -> [Output] {
  if limit < 1 { throw CoroutineError.invalidCount(limit, of: "the limit of a co_map") }
  _ = try Carrier.beginWaiting()
  let work = MapWork<Output>(limit)
  try co_scope { scope in
    while let element = try next() {
      try co_checkCancelled()
      let index = work.begin()
      scope.launch(name: name, file: file, line: line) { [place = MapPlace(work)] in
        do {
          work.put(try body(element), at: index)
        } catch {
          place.fail(error)
          throw error
        }
        place.succeed()
      }
      try work.waitForRoom()
    }
  }
  return try work.results
}

/// The place of one element among those that are worked on; the coroutine's body holds it.
///
/// So it is released where the body never begins, or is cancelled alone, as on a loop that ends: the scope does not
/// take that for a failure, and the caller would wait for ever.
private final class MapPlace<Output: Sendable>: @unchecked Sendable {
  // Sound because the body uses it, and after that what releases the body.
  private let work: MapWork<Output>
  @exclusivity(unchecked) private var isOver = false

  init(_ work: MapWork<Output>) { self.work = work }
  deinit { if !isOver { work.fail(CancellationError()) } }

  func succeed() {
    isOver = true
    work.end()
  }

  func fail(_ error: any Error) {
    isOver = true
    work.fail(error)
  }
}

/// What has become of the elements of one `co_map`.
///
/// Invariants, under the lock
///  1. `active` is the number of elements that have begun and not succeeded.
///  2. `room` is set while the caller waits because `active` is at the limit. What lowers it, and the first failure,
///     take `room`. After a failure there is none: no element begins, however long that coroutine takes to its end.
private final class MapWork<Output: Sendable>: @unchecked Sendable {
  // Sound because all that changes is accessed under the lock.
  private let limit: Int
  private let lock = Shared<ThreadLock>()
  @exclusivity(unchecked) private var active = 0
  @exclusivity(unchecked) private var room: Resumer<Void>?
  @exclusivity(unchecked) private var outputs: [Output?] = []
  @exclusivity(unchecked) private var failure: (any Error)?

  init(_ limit: Int) { self.limit = limit }

  /// Begins an element, and returns its index.
  func begin() -> Int {
    lock.withLock {
      active += 1
      outputs.append(nil)
      return outputs.count - 1
    }
  }

  /// Gives the place of an element that has succeeded to the next one.
  func end() {
    let room = lock.withLock {
      active -= 1
      return self.room.take()
    }
    room?.resume(())
  }

  /// Ends the work: the caller's wait for room throws the first error.
  func fail(_ error: any Error) {
    let (first, room) = lock.withLock {
      failure = failure ?? error
      return (failure ?? error, self.room.take())
    }
    room?.fail(first)
  }

  /// Suspends the caller until another element may begin; throws the first failure.
  func waitForRoom() throws {
    if let room = lock.withLock({ known }) { return try room.get() }
    try co_suspend { (done: Resumer<Void>) in
      let known = lock.withLock { () -> Result<Void, any Error>? in
        if self.known == nil { room = done }
        return self.known
      }
      if let known { done.resume(with: known) }
    }
  }

  /// What a wait for room would end with; nil if it has to wait.
  ///
  /// Read under the lock.
  private var known: Result<Void, any Error>? {
    if let failure { return .failure(failure) }
    return active < limit ? .success(()) : nil
  }

  func put(_ output: Output, at index: Int) { lock.withLock { outputs[index] = output } }

  /// All outputs, when each coroutine has ended; throws the first failure, also one that was none to the scope.
  var results: [Output] {
    get throws {
      let (outputs, failure) = lock.withLock { (self.outputs, self.failure) }
      if let failure { throw failure }
      return try outputs.map { output in
        guard let output else { throw CancellationError() }
        return output
      }
    }
  }
}
