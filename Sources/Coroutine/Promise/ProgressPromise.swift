/// How far work has come: units done of a total.
public struct ProgressUpdate: Sendable, Equatable {
  /// Units done.
  public var completed: Int
  /// Units in all; zero or less: not known.
  public var total: Int
  /// Creates a progress.
  public init(completed: Int, total: Int) { (self.completed, self.total) = (completed, total) }
  /// From 0 to 1; 0 where the total is not known.
  public var fraction: Double { total > 0 ? min(1, max(0, Double(completed) / Double(total))) : 0 }
}

/// A promise whose work tells how far it has come; a sequence of these updates, which always ends.
///
/// ```swift
/// for progress in download { print(progress.fraction) }
/// let data = try co_await(download)
/// ```
///
/// Each loop sees the latest update that it has not seen: a slow one skips some, none sees an old one after a newer. The
/// sequence ends when the promise settles, after the last update; in a cancelled coroutine at once.
public final class ProgressPromise<Success: Sendable>: Promise<Success>, @unchecked Sendable {
  // Sound because everything mutable is in `updates`, under its lock.
  private let updates = ProgressUpdates()

  /// The latest update; nil: there was none.
  public var progress: ProgressUpdate? { updates.latest }

  /// Tells how far the work has come.
  ///
  /// After the end it is ignored. Any thread, never suspends.
  public func update(completed: Int, total: Int) {
    if isPending { updates.put(ProgressUpdate(completed: completed, total: total)) }
  }

  fileprivate enum Look {
    case update(ProgressUpdate, version: Int)
    case nothingNew
    case end
  }

  /// The next update after `seen`.
  fileprivate func look(after seen: Int) -> Look {
    // Before the updates, or one that came between the two looks could be missed for the end.
    let isOver = isSettled
    if let (update, version) = updates.newer(than: seen) { return .update(update, version: version) }
    return isOver ? .end : .nothingNew
  }

  /// Settled when there is something new to see.
  fileprivate func changed(after seen: Int) -> Promise<Void> {
    let (change, isFirst) = updates.change(after: seen)
    // Unlike observe, it does not count as seeing a failure.
    if isFirst { _ = completion.add(ClosureCallback { [updates] in updates.wake() }, observes: false) }
    if isSettled { updates.wake() }
    return change
  }

  /// One loop over the updates.
  public struct Iterator: IteratorProtocol, AsyncIteratorProtocol {
    fileprivate let promise: ProgressPromise
    private var seen = 0
    private var isOver = false

    fileprivate init(_ promise: ProgressPromise) { self.promise = promise }

    /// Suspends until there is an update that this loop has not seen; nil at the end, and once the coroutine is
    /// cancelled.
    ///
    /// Off a coroutine it never waits: nil where nothing new is there.
    public mutating func next() -> ProgressUpdate? {
      while true {
        if let found = take(promise.look(after: seen)) { return found }
        guard !isOver, (try? co_await(promise.changed(after: seen))) != nil else { return nil }
      }
    }

    /// As next, for async code; throws once the Task is cancelled.
    public mutating func next() async throws -> ProgressUpdate? {
      while true {
        if let found = take(promise.look(after: seen)) { return found }
        if isOver { return nil }
        try await promise.changed(after: seen).value
      }
    }

    private mutating func take(_ look: Look) -> ProgressUpdate? {
      switch look {
      case .update(let progress, let version):
        seen = version
        return progress
      case .nothingNew:
        return nil
      case .end:
        isOver = true
        return nil
      }
    }
  }
}

extension ProgressPromise: Sequence, AsyncSequence {
  /// What the loop gets.
  public typealias Element = ProgressUpdate
  /// A loop of its own.
  public func makeIterator() -> Iterator { Iterator(self) }
  /// A loop of its own.
  public func makeAsyncIterator() -> Iterator { Iterator(self) }
}

/// What has been told of the progress of one promise, and who wants to hear more.
private final class ProgressUpdates: @unchecked Sendable {
  // Sound because everything mutable is under `lock`.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var last: ProgressUpdate?
  @exclusivity(unchecked) private var version = 0
  /// Settled at the next update, or at the end; made when somebody waits.
  @exclusivity(unchecked) private var next: Promise<Void>?
  /// Whether somebody has waited before, and so the end wakes.
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

  /// What to wait for; `isFirst`: nobody has waited before.
  func change(after seen: Int) -> (Promise<Void>, isFirst: Bool) {
    let made = Promise<Void>()
    return lock.withLock {
      if version > seen { return (.value(()), false) }
      let change = next ?? made
      next = change
      defer { hasWaiters = true }
      return (change, !hasWaiters)
    }
  }

  func wake() { lock.withLock { next.take() }?.fulfill(()) }
}
