import Synchronization

// The case of an Awaitable. Jobs and promises (Promise+Select.swift) are places by their completion; everything else settles a
// completion of ours.

extension Awaitable {
  /// For ``co_select(biased:_:)``: waits for the end.
  ///
  /// Ready when it is known; `body` gets the outcome. Losing leaves what is awaited alone.
  public func onAwait<R>(_ body: @escaping (Result<Output, any Error>) throws -> R) -> SelectCase<R> {
    let place = ObservedPlace(self)
    return SelectCase(
      ObservedAwait<Output>.self,
      place: place,
      lock: place.completion.lockAddress,
      queue: place.completion.waiterAddress,
      needsPreparation: true,
      taking: body
    )
  }
}

extension Job {
  /// For ``co_select(biased:_:)``: waits for the job's end.
  ///
  /// Ready when it has ended; `body` gets the outcome. Starts a lazy job. Losing leaves the job alone. On the job
  /// itself it is never ready.
  @inlinable
  public func onAwait<R>(_ body: @escaping (Result<Success, any Error>) throws -> R) -> SelectCase<R> {
    SelectCase(
      JobAwait<Success>.self,
      place: self,
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
    job.completion.isSettled ? .yes : .no
  }
  @inlinable
  static func finish(_ job: Job<Success>, _ waiter: SelectWaiterRef) -> Result<Success, any Error> {
    job.completion.seenOutcome(as: Success.self)
  }
}

extension CompletionRef {
  @inlinable var lockAddress: UnsafePointer<SpinLock> {
    @inline(__always) get { withUnsafePointer(to: pointee.lock) { $0 } }
  }
}

/// An Awaitable that is observed while a select is under way.
///
/// A case may be used twice. Each select observes anew, unless the end is known; within one select all uses share the place,
/// and so its one observation, which ends with the first of them that is disposed of: by then no case is pending.
private final class ObservedPlace<Output: Sendable>: Inspectable, @unchecked Sendable {
  // Sound because the completion guards itself, and the observation is touched by the selecting coroutine alone.
  let completion = CompletionRef.allocate(capacity: 1)
  let observe: (@escaping @Sendable (Result<Output, any Error>) -> Void) -> Observation
  @exclusivity(unchecked) var observation: Observation?

  init(_ awaitable: some Awaitable<Output>) {
    observe = awaitable.observeToWait
    completion.initialize(to: Completion(for: Output.self))
    checkAddress(completion.waiterAddress, of: &completion.pointee.waiters)
  }

  var waitLock: UnsafePointer<SpinLock> { completion.lockAddress }
  func inspect(_ names: JobNames) -> String { "an Awaitable of \(Output.self)" }
  func verb(of queue: UInt?) -> String { "await" }

  deinit {
    Inspection.letFinish(self)
    completion.deinitialize(count: 1)
    completion.deallocate()
  }
}

private enum ObservedAwait<Value: Sendable>: SelectOperation {
  static func prepare(_ place: ObservedPlace<Value>, _ waiter: SelectWaiterRef) {
    if place.observation == nil, !place.completion.isSettled {
      place.observation = place.observe { _ = place.completion.settle($0) }
    }
  }
  static func attempt(_ place: ObservedPlace<Value>, _ waiter: SelectWaiterRef) -> SelectAnswer {
    place.completion.isSettled ? .yes : .no
  }
  static func finish(_ place: ObservedPlace<Value>, _ waiter: SelectWaiterRef) -> Result<Value, any Error> {
    place.completion.seenOutcome(as: Value.self)
  }
  static func dispose(_ place: ObservedPlace<Value>, _ waiter: SelectWaiterRef) { place.observation.take()?.cancel() }
}
