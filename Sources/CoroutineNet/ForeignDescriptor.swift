public import Coroutine
import Glibc

/// A descriptor of another library, watched once: for libpq, libcurl or inotify.
///
/// The library goes on owning the descriptor: it reads, writes and closes it. This object only waits. It is registered
/// with the kernel once, edge-triggered, so a wait costs one system call, where `co_untilReadable(_:assumingNotReady:)`
/// costs three:
///
/// ```swift
/// let watch = try ForeignDescriptor(inotify)
/// defer { watch.end() }
/// while true {
///   let count = read(inotify, &buffer, buffer.count)
///   if count > 0 { try handle(buffer[..<count]) }
///   else if errno == EAGAIN { try watch.wait(for: .readable, afterEAGAIN: .readable) }
///   else { throw WatchFailure(errno) }
/// }
/// ```
///
/// Call ``end()`` before the library closes the descriptor. The object holds a duplicate of the descriptor, so nothing
/// worse happens if the library closes first: the open file, and a connection of it, stays until ``end()``, a wait sees
/// what the peer does to it, and a new file with the same number is not concerned. If a library replaces its
/// descriptor, as libpq does while it connects, end the object and create another one.
///
/// Any number of coroutines may wait, and all are woken. It may be created, ended and released on any thread, also
/// outside coroutines and in async code. In a forked child, ending it leaves the parent's object as it is.
public final class ForeignDescriptor: Sendable {
  let watch: ForeignWatch

  /// Watches an open descriptor: a socket, a pipe, a terminal, inotify, an eventfd or a timerfd, for example.
  ///
  /// It may be blocking. Never suspends. The duplicate counts towards the process's limit of descriptors.
  ///
  /// - Throws: ``NetError``: `EBADF` if the number is not open, `EPERM` for a regular file, a directory or a block
  ///   device, which is always ready, `EMFILE` without a free descriptor.
  public init(_ descriptor: Int32) throws {
    do {
      watch = try ForeignWatch(descriptor)
    } catch {
      throw NetError(of: error, "watching descriptor \(descriptor)", nil)
    }
  }

  /// What a call of the library may do without waiting.
  public struct Readiness: OptionSet, Sendable {
    /// The bits.
    public let rawValue: UInt8
    /// Creates a set from its bits.
    public init(rawValue: UInt8) { self.rawValue = rawValue }
    /// Input is there, or its end, or an error that a read reports.
    public static let readable = Readiness(rawValue: 1)
    /// There is room for output, or an error that a write reports.
    public static let writable = Readiness(rawValue: 2)
  }

  /// Suspends until one of them may succeed.
  ///
  /// An event of the kernel resumes the coroutine. It returns at once for what is ready already, and for an empty set.
  /// It may return too early, never too late: the library's call then would block once more, and the coroutine waits
  /// again.
  ///
  /// A wait makes no system call of its own if `afterEAGAIN` says that the library has just found nothing, or if the
  /// runtime knows it from an earlier wait. Otherwise it polls once. So a library that does not read until it would
  /// block, as libpq, loses nothing if the argument is left out.
  ///
  /// - Parameters:
  ///   - readiness: What to wait for, or both.
  ///   - afterEAGAIN: That for which the calling coroutine has just seen that a call would block (`EAGAIN`), since its
  ///     last wait here returned.
  /// - Returns: What may succeed, of `readiness`.
  /// - Throws: ``NetError/closed`` after ``end()``, also if it is called during the wait. ``NetError`` if the kernel
  ///   refuses to watch the descriptor. If the coroutine is cancelled, the cancellation error, at once.
  ///   `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  @discardableResult
  public func wait(for readiness: Readiness, afterEAGAIN: Readiness = []) throws -> Readiness {
    guard !readiness.isEmpty else {
      try co_checkCancelled()
      return []
    }
    let ready = try NetError.translating("waiting for descriptor \(watch.number)", nil) {
      try watch.wait(
        for: ForeignWatch.Directions(rawValue: readiness.rawValue),
        afterEAGAIN: ForeignWatch.Directions(rawValue: afterEAGAIN.rawValue)
      )
    }
    return Readiness(rawValue: ready.rawValue)
  }

  /// Says that the library has used up `readiness`, without a wait.
  ///
  /// For a descriptor that passes from coroutine to coroutine, as a pooled connection does: the one that waited last
  /// has read everything, and the first wait of the next one then needs no poll. Called by that coroutine; by another
  /// one it has no effect.
  ///
  /// - Parameter afterShortRead: Whether the library has not seen EAGAIN, but its last read has returned fewer bytes
  ///   than it asked for. That read does not see the end of the stream behind them, so the next wait polls if the peer
  ///   has closed.
  package func settle(_ readiness: Readiness, afterShortRead: Bool = false) {
    watch.settle(ForeignWatch.Directions(rawValue: readiness.rawValue), afterShortRead: afterShortRead)
  }

  /// Calls `body` with the duplicate, for a system call about the open file; returns nil after ``end()``.
  ///
  /// Never suspends; any thread, also while the library closes its own number. `body` must not close the duplicate.
  package func withDuplicate<R>(_ body: (Int32) -> R) -> R? {
    guard watch.watched.enter() else { return nil }
    defer { watch.watched.leave() }
    return body(watch.watched.number)
  }

  /// Stops watching: every coroutine that waits gets ``NetError/closed``.
  ///
  /// Never suspends; any thread. A second call has no effect, and the release of the object does the same. The
  /// descriptor of the library stays open.
  public func end() { watch.watched.close() }

  // MARK: Select

  /// Creates a case of `co_select(biased:_:)` that is ready when a read may succeed: input is there, or its end.
  ///
  /// After ``end()`` it is ready too, and co_select throws ``NetError/closed``. The case reads nothing.
  public func onReadable<R>(_ body: @escaping () throws -> R) -> SelectCase<R> { onReady(.reading, body) }

  /// Creates a case of `co_select(biased:_:)` that is ready when a write may succeed.
  ///
  /// After ``end()`` it is ready too, and co_select throws ``NetError/closed``. The case writes nothing.
  public func onWritable<R>(_ body: @escaping () throws -> R) -> SelectCase<R> { onReady(.writing, body) }

  private func onReady<R>(
    _ direction: WatchedDescriptor.Direction,
    _ body: @escaping () throws -> R
  ) -> SelectCase<R> {
    let events = Int16(direction == .reading ? POLLIN : POLLOUT)
    let isReady: @Sendable (Int32) -> Bool = { number in
      var query = pollfd(fd: number, events: events, revents: 0)
      return poll(&query, 1, 0) != 0
    }
    return watch.watched.onReady(direction, shown: watch.number, isReady: isReady) { [watch] code in
      // Made for an error alone, as texts cost more than the case.
      func operation() -> String { "waiting for descriptor \(watch.number)" }
      if code != 0 { throw NetError(code: code, operation(), nil) }
      if watch.watched.isClosed { throw NetError(.closed, operation(), nil) }
      return try body()
    }
  }
}
