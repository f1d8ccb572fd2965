#if Postgres
public import Coroutine

/// What a listener gets: hints.
///
/// The tables are the truth.
public enum PostgresNotification: Sendable, Hashable {
  /// A notification, and the server's process that has sent it.
  case payload(String, from: Int32)
  /// Some may have been missed: it listens for the first time, or again, or the buffer was full. Look.
  case gap
}

/// The notifications of one channel for one listener.
///
/// Invariants, under the lock
///  1. `isBehind`: a notification did not fit since the last `gap` was put in. Until the `gap` is put in, nothing else
///     is, so the listener sees it before anything that came later.
///  2. If `isBehind`, the buffer was full, so it holds something: the receiver that takes it puts the `gap` in.
public final class PostgresNotifications: Sendable {
  let channel: String
  private let queue: Channel<PostgresNotification>
  private let isBehind = ThreadMutex(false)
  private let onStop: @Sendable () -> Void

  init(_ channel: String, buffer: Int, onStop: @escaping @Sendable () -> Void) {
    self.channel = channel
    queue = Channel(.bounded(Swift.max(1, buffer)))
    self.onStop = onStop
  }

  // A loop that ends early leaves its listener behind without a stop.
  deinit { onStop() }

  /// Any thread; never suspends.
  func deliver(_ notification: PostgresNotification) {
    isBehind.withLock { isBehind in
      if isBehind { return }
      if case .sent = queue.trySend(notification) { return }
      isBehind = true
    }
  }

  /// Puts the `gap` in, after a notification was taken.
  private func tookOne() {
    isBehind.withLock { isBehind in
      guard isBehind, case .sent = queue.trySend(.gap) else { return }
      isBehind = false
    }
  }

  /// Receives the next notification; nil after ``stop()``.
  ///
  /// Suspends until there is one. A loss of the connection does not end it: it connects again, from 50 ms up to 5 s
  /// later, listens, and gives a `gap`. If cancelled, throws at once, and nothing is lost.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func receive() throws -> PostgresNotification? {
    let next = try queue.receive()
    tookOne()
    return next
  }

  /// A case of `co_select`: receives the next notification, as ``receive()`` does.
  public func onReceive<R>(_ body: @escaping (PostgresNotification?) throws -> R) -> SelectCase<R> {
    queue.onReceive { next in
      self.tookOne()
      return try body(next)
    }
  }

  /// Ends the listener: ``receive()`` returns nil from here on.
  ///
  /// What was not received is dropped: notifications are hints. Any thread; never suspends.
  public func stop() {
    let isFirst = queue.close()
    queue.cancel()
    if isFirst { onStop() }
  }

  /// Calls `body` with each notification until ``stop()``; stops listening when it ends, however that is.
  ///
  /// Suspends for each notification as ``receive()`` does.
  /// - Throws: The cancellation error, or the error of `body`.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func forEach(_ body: (PostgresNotification) throws -> Void) throws {
    defer { stop() }
    while let notification = try receive() { try body(notification) }
  }
}

extension PostgresNotifications: Sequence {
  /// Receives the notifications until ``stop()``, for `for notification in notifications` in a coroutine.
  ///
  /// Each step suspends as ``receive()`` does. Listening ends with the last reference to this object, so a loop over
  /// `db.listen(…)` itself stops it, however it ends. It cannot throw: a cancellation ends the loop as well, and the
  /// next wait throws it. ``forEach(_:)`` throws it itself, and stops listening at its end.
  public func makeIterator() -> AnyIterator<PostgresNotification> {
    AnyIterator { try? self.receive() }
  }
}
#endif
