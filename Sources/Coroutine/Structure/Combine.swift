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
