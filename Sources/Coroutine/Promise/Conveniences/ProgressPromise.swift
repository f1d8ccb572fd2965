/// The progress of some work: completed units of a total.
public struct ProgressUpdate: Sendable, Equatable {
  /// The number of completed units.
  public var completed: Int
  /// The number of units in all.
  ///
  /// Zero or less means that it is unknown.
  public var total: Int
  /// Creates an update.
  public init(completed: Int, total: Int) { (self.completed, self.total) = (completed, total) }
  /// The completed part, from 0 to 1.
  ///
  /// It is 0 if the total is unknown.
  public var fraction: Double { total > 0 ? min(1, max(0, Double(completed) / Double(total))) : 0 }
}

/// A promise whose work reports its progress, and a sequence of these updates, which always ends.
///
/// ```swift
/// for progress in download { print(progress.fraction) }
/// let data = try co_await(download)
/// ```
///
/// Each loop gets the latest update that it has not seen. A slow loop skips updates; no loop gets an older update after
/// a newer one. The sequence ends when the promise settles, after the last update. In a cancelled coroutine it ends at
/// once.
public final class ProgressPromise<Success: Sendable>: Promise<Success>, @unchecked Sendable {
  // Sound because everything mutable is in `updates`, under its lock.
  fileprivate let updates = ProgressUpdates()

  /// The latest update, or nil if there was none.
  public var progress: ProgressUpdate? { updates.latest }

  /// Reports the progress of the work.
  ///
  /// After the promise has settled, the call does nothing. Never suspends. May be called on any thread.
  public func update(completed: Int, total: Int) {
    if isPending { updates.put(ProgressUpdate(completed: completed, total: total)) }
  }

  /// Returns a promise that settles when there is a newer update than `seen`, or the end.
  fileprivate func changed(after seen: Int) -> Promise<Void> {
    let (change, isFirst) = updates.change(after: seen)
    // Unlike `observe`, this callback does not count as observing a failure.
    if isFirst {
      completion.touch()
      _ = completion.add(ClosureCallback { [updates] in updates.wake() }, observes: .no)
    }
    if isSettled { updates.wake() }
    return change
  }

  /// One loop over the updates.
  public struct _Iterator: IteratorProtocol, AsyncIteratorProtocol {
    /// The type of the errors in async code: the cancellation of the Task.
    ///
    /// Written out, because the compiler would infer `Never` from the `next` for coroutines.
    public typealias Failure = any Error

    fileprivate let promise: ProgressPromise
    private var seen = 0

    fileprivate init(_ promise: ProgressPromise) { self.promise = promise }

    /// Suspends until there is an update that this loop has not seen, and returns it.
    ///
    /// - Returns: The update. Nil at the end, and once the coroutine is cancelled. Outside a coroutine the call never
    ///   waits, and returns nil if there is no new update.
    @available(*, noasync, message: "use `for try await`")
    public mutating func next() -> ProgressUpdate? {
      while true {
        let (update, isOver) = newer()
        if update != nil || isOver || (try? co_await(promise.changed(after: seen))) == nil { return update }
      }
    }

    /// Suspends the Task until there is an update that this loop has not seen.
    ///
    /// Throws once the Task is cancelled.
    public mutating func next() async throws -> ProgressUpdate? {
      while true {
        let (update, isOver) = newer()
        if update != nil || isOver { return update }
        try await promise.changed(after: seen).value
      }
    }

    /// Returns an update that this loop has not seen, if there is one, and whether there will be none.
    private mutating func newer() -> (ProgressUpdate?, isOver: Bool) {
      // Read before the updates. In the other order, an update between the two reads could be lost, and the end
      // reported.
      let isOver = promise.isSettled
      guard let (update, version) = promise.updates.newer(than: seen) else { return (nil, isOver) }
      seen = version
      return (update, false)
    }
  }
}

extension ProgressPromise: FallibleSource {
  /// A loop ends before the promise settles where its coroutine is cancelled, or where it may not wait.
  @usableFromInline var failure: (any Error)? {
    if isSettled { return nil }
    do { try co_checkCancelled() } catch { return error }
    return nil
  }
}

extension ProgressPromise: Sequence, AsyncSequence {
  /// Returns a new loop over the updates.
  public func makeIterator() -> _Iterator { _Iterator(self) }
  /// Returns a new loop over the updates, for async code.
  public func makeAsyncIterator() -> _Iterator { _Iterator(self) }
}

/// The latest update of one promise, and the promise for its next update.
private final class ProgressUpdates: @unchecked Sendable {
  // Sound because everything mutable is under `lock`.
  private let lock = Shared<SpinLock>()
  @exclusivity(unchecked) private var last: ProgressUpdate?
  @exclusivity(unchecked) private var version = 0
  /// The promise that settles at the next update, or at the end.
  ///
  /// Created when a loop waits.
  @exclusivity(unchecked) private var next: Promise<Void>?
  /// Whether a loop has waited before, so that the end of the promise wakes the loops.
  @exclusivity(unchecked) private var hasWaiters = false

  init() {}

  var latest: ProgressUpdate? { lock.withLock { last } }

  func put(_ update: ProgressUpdate) {
    lock.withLock {
      last = update
      version += 1
    }
    wake()
  }

  func newer(than seen: Int) -> (ProgressUpdate, version: Int)? {
    lock.withLock { version > seen ? last.map { ($0, version) } : nil }
  }

  /// Returns a promise to wait for.
  ///
  /// `isFirst` is true if no loop has waited before.
  func change(after seen: Int) -> (Promise<Void>, isFirst: Bool) {
    let made = Promise<Void>()
    lock.lock()
    if version > seen {
      lock.unlock()
      return (.value(()), false)
    }
    let change = next ?? made
    next = change
    let isFirst = !hasWaiters
    hasWaiters = true
    lock.unlock()
    return (change, isFirst)
  }

  func wake() { lock.withLock { next.take() }?.fulfill(()) }
}
