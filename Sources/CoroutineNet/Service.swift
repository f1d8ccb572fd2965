import Coroutine
import Glibc
import Synchronization

/// What the coroutines of one server share.
///
/// A connection is counted by a `Place`, which its coroutine's body holds and nothing else: it ends when the body has
/// returned or thrown, and also if the body never runs, because there was no stack for it or the server is over.
final class Service: Sendable {
  private let options: Server.Options
  private let handle: @Sendable (Connection) throws -> Void
  /// The connections that may still be accepted.
  private let places: FairSemaphore
  /// The connections that have not ended.
  private let live = WaitGroup()
  private let isDraining = Atomic<Bool>(false)

  init(_ options: Server.Options, _ handle: @escaping @Sendable (Connection) throws -> Void) {
    self.options = options
    self.handle = handle
    places = FairSemaphore(max(1, options.maxConnections))
  }

  /// One of the connections that the server may have at once.
  private final class Place: Sendable {
    private let service: Service
    init(_ service: Service) {
      self.service = service
      service.live.add()
    }
    deinit {
      service.places.release()
      service.live.done()
    }
  }

  /// Accepts until it is cancelled, and launches a handler for each connection.
  ///
  /// Returns the error of the listener, if that has ended it.
  func accept(_ listener: Listener, into handlers: Scope) -> (any Error)? {
    var pause = Pause()
    while true {
      do {
        try places.acquire()
        if try acceptOne(listener, handlers) {
          pause = Pause()
        } else {
          // No place is held while no connection is there: other listeners may have one.
          try listener.waitUntilAcceptable()
        }
      } catch let error as NetError where Self.isShortage(error.code) {
        // The connection stays in the listener's queue. A descriptor may become free at any time.
        if pause.isFirst { options.onError?(error, listener.address) }
        if (try? co_delay(pause.next())) == nil { return nil }
      } catch {
        return co_isCancelled ? nil : error
      }
    }
  }

  /// Accepts a connection if one is there.
  ///
  /// The caller has acquired a place for it.
  private func acceptOne(_ listener: Listener, _ handlers: Scope) throws -> Bool {
    let place = Place(self)
    guard let connection = try listener.acceptNow() else { return false }
    launch(connection, place, handlers)
    return true
  }

  private func launch(_ connection: Connection, _ place: Place, _ handlers: Scope) {
    handlers.launch(name: "connection") { [self] in
      defer {
        connection.close()
        withExtendedLifetime(place) {}
      }
      do {
        try handle(connection)
      } catch {
        // The server's own cancellation is no error of the connection.
        if error is CancellationError, isDraining.load(ordering: .relaxed) { return }
        guard let onError = options.onError else { throw error }
        onError(error, connection.remoteAddress)
      }
    }
  }

  /// Waits for the handlers, and cancels those that last too long.
  func drain(_ handlers: Scope) {
    try? co_timeout(options.drain) { try live.join() }
    isDraining.store(true, ordering: .relaxed)
    handlers.cancel()
  }

  /// Whether the system, or the process, has too little of something that comes back.
  private static func isShortage(_ code: Int32) -> Bool {
    [EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC, EAGAIN].contains(code)
  }

  /// The times between attempts while descriptors are short: 5 ms, doubled up to 500 ms.
  private struct Pause {
    private var length: Duration = .zero
    var isFirst: Bool { length == .zero }
    mutating func next() -> Duration {
      length = isFirst ? .milliseconds(5) : min(length * 2, .milliseconds(500))
      return length
    }
  }
}
