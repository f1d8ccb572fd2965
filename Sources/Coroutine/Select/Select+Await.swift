import Synchronization

// The case of an Awaitable. Jobs and promises (Promise.swift) take part with their own completion. Every other
// Awaitable settles a completion that is created for the case.

extension Awaitable {
  /// Returns a case for ``co_select(biased:_:)`` that waits for the end.
  ///
  /// Ready when the outcome is known; `body` gets it. If another case is selected, the Awaitable is unchanged.
  public func onAwait<R>(_ body: @escaping (sending Result<Output, any Error>) throws -> R) -> SelectCase<R> {
    let target = ObservedAwaitable(self)
    return SelectCase(
      ObservedAwait<Output>.self,
      target: target,
      lock: target.completion.lockAddress,
      queue: target.completion.waiterAddress,
      needsPreparation: true,
      taking: body
    )
  }
}

extension Job {
  /// Returns a case for ``co_select(biased:_:)`` that waits for the job's end.
  ///
  /// Ready when the job has ended; `body` gets the outcome. Starts a lazy job. If another case is selected, the job is
  /// unchanged. A job that selects its own end never finds the case ready.
  @inlinable
  public func onAwait<R>(_ body: @escaping (sending Result<Success, any Error>) throws -> R) -> SelectCase<R> {
    SelectCase(
      JobAwait<Success>.self,
      target: self,
      lock: completion.lockAddress,
      queue: completion.waiterAddress,
      needsPreparation: true,
      taking: body
    )
  }
}

@usableFromInline
enum JobAwait<Success: Sendable>: SelectOperation {
  @usableFromInline
  static func prepare(_ job: Job<Success>, _ waiter: SelectWaiterRef) { job.start() }
  @inlinable
  static func attempt(_ job: Job<Success>, _ waiter: SelectWaiterRef) -> SelectAnswer {
    job.completion.known.isSettled ? .yes : .no
  }
  @inlinable
  static func finish(_ job: Job<Success>, _ waiter: SelectWaiterRef) -> Result<Success, any Error> {
    job.completion.seenOutcome(as: Success.self)
  }
}

/// An Awaitable that is observed during a select.
///
/// A case may be used twice. Each select observes anew, unless the outcome is known. Within one select, all uses share
/// this object and its one observation, which ends with the first use that is disposed of: by then no case is pending.
private final class ObservedAwaitable<Output: Sendable>: Inspectable, @unchecked Sendable {
  // Sound because the completion guards itself, and only the selecting coroutine touches the observation.
  let completion = CompletionRef.allocate(capacity: 1)
  let observe: (@escaping @Sendable (Result<Output, any Error>) -> Void) -> AwaitableObservation
  @exclusivity(unchecked) var observation: AwaitableObservation?

  init(_ awaitable: some Awaitable<Output>) {
    observe = awaitable.observeToWait
    completion.initialize(to: Completion(for: Output.self))
    checkAddress(completion.waiterAddress, of: &completion.pointee.waiters)
  }

  var waitLock: UnsafePointer<SpinLock> { completion.lockAddress }
  func inspect(_ names: JobNames) -> String { "an Awaitable of \(asWord(Output.self))" }
  func verb(of queue: UInt?) -> String { "await" }

  deinit {
    Inspection.letFinish(self)
    completion.deinitialize(count: 1)
    completion.deallocate()
  }
}

private enum ObservedAwait<Value: Sendable>: SelectOperation {
  static func prepare(_ target: ObservedAwaitable<Value>, _ waiter: SelectWaiterRef) {
    if target.observation == nil, !target.completion.known.isSettled {
      target.observation = target.observe { outcome in
        target.completion.touch()
        switch outcome {
        case .success(let value): _ = target.completion.succeed(value)
        case .failure(let error): _ = target.completion.fail(error)
        }
      }
    }
  }
  static func attempt(_ target: ObservedAwaitable<Value>, _ waiter: SelectWaiterRef) -> SelectAnswer {
    target.completion.known.isSettled ? .yes : .no
  }
  static func finish(_ target: ObservedAwaitable<Value>, _ waiter: SelectWaiterRef) -> Result<Value, any Error> {
    target.completion.seenOutcome(as: Value.self)
  }
  static func dispose(_ target: ObservedAwaitable<Value>, _ waiter: SelectWaiterRef) {
    target.observation.take()?.cancel()
  }
}
