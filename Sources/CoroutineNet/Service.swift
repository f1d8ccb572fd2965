import Coroutine
import Glibc

/// The state that the coroutines of one server share.
///
/// A connection is counted by a `ConnectionPermit`, which its coroutine's body holds and nothing else: it ends when the
/// body has returned or thrown, and also if the body never runs, because there was no stack for it or the server is
/// over.
final class Service: Sendable {
  private let options: Server.Options
  private let handle: @Sendable (Connection) throws -> Void
  /// The permits of connections that may still be accepted.
  private let permits: FairSemaphore
  /// The connections that have not ended.
  private let live = WaitGroup()

  init(_ options: Server.Options, _ handle: @escaping @Sendable (Connection) throws -> Void) {
    self.options = options
    self.handle = handle
    // A semaphore counts no further.
    permits = FairSemaphore(min(max(1, options.maxConnections), .max / 2))
  }

  /// Counts one connection of the server until it is released.
  private final class ConnectionPermit: Sendable {
    private let service: Service
    init(_ service: Service) {
      self.service = service
      service.live.add()
    }
    deinit {
      service.permits.release()
      service.live.done()
    }
  }

  /// Accepts until it is cancelled, and launches a handler for each connection.
  ///
  /// Throws the error of the listener, or the cancellation error.
  func accept(_ listener: Listener, into handlers: Scope) throws {
    var pause = Pause()
    while true {
      do {
        try permits.acquire()
        if try acceptOne(listener, handlers) {
          pause = Pause()
        } else {
          // No permit is held during this wait, because other listeners may have a connection.
          try listener.waitUntilAcceptable()
        }
      } catch let error as NetError where Self.isShortage(error.code) || Listener.isTransient(error.code) {
        // The connection stays in the listener's queue, unless the memory for its record is what is short: then it is
        // closed. A descriptor may become free at any time. If the system still refuses, the server tries again after
        // the pause.
        if pause.isFirst { options.onError?(error, listener.address) }
        try co_delay(pause.next())
      }
    }
  }

  /// Accepts a connection if the backlog has one; returns whether it had.
  ///
  /// The caller has acquired a permit, which the connection or this function releases.
  private func acceptOne(_ listener: Listener, _ handlers: Scope) throws -> Bool {
    let permit = ConnectionPermit(self)
    guard let connection = try listener.acceptNow() else { return false }
    launch(connection, permit, handlers)
    return true
  }

  private func launch(_ connection: Connection, _ permit: ConnectionPermit, _ handlers: Scope) {
    let age = options.shedding == nil ? nil : ConnectionAge(of: connection)
    handlers.launch(name: "connection", stack: options.stack) { [self] in
      defer {
        connection.close()
        withExtendedLifetime(permit) {}
      }
      do {
        if let shedding = options.shedding, let age, !shedding.admit(after: age.now) {
          return try shedding.refuse(connection)
        }
        try handle(connection)
      } catch {
        // The server's own cancellation is no error of the connection.
        if error is CancellationError, co_isCancelled { return }
        guard let onError = options.onError else { throw error }
        onError(error, connection.remoteAddress)
      }
    }
  }

  /// Suspends until no connection is left.
  func waitForConnections() throws { try live.wait() }

  /// Whether an error means a shortage that may end by itself: of descriptors, memory or buffers.
  private static func isShortage(_ code: Int32) -> Bool {
    [EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC, EAGAIN].contains(code)
  }

  /// The pauses between attempts during a shortage: 5 ms at first, then doubled, 500 ms at most.
  private struct Pause {
    private var length: Duration = .zero
    var isFirst: Bool { length == .zero }
    mutating func next() -> Duration {
      length = isFirst ? .milliseconds(5) : min(length * 2, .milliseconds(500))
      return length
    }
  }
}
