#if Postgres
internal import CPostgres
import Coroutine
import Glibc

/// What libpq needs to cancel the statements of one connection.
///
/// PQcancel connects, sends, and waits for the end of that connection: it blocks, without a limit, while the server's
/// main process does not run. So it runs on threads of its own pool, of which there are a few: those that hang
/// take no thread that `co_blocking` needs, and further cancellations wait in the queue, where they can be given up.
final class CancelHandle: @unchecked Sendable {
  // Sound because libpq never changes the handle, and PQcancel may be called on any thread.
  private let handle: OpaquePointer

  static let limit = 16
  private static let pool = BlockingPool(limit: limit, call: "PQcancel", threadName: "co-pqcancel")

  init?(_ pg: OpaquePointer) {
    guard let handle = PQgetCancel(pg) else { return nil }
    self.handle = handle
  }
  deinit { PQfreeCancel(handle) }

  /// Suspends until the server has signalled the backend, or could not be reached.
  ///
  /// If cancelled, throws at once.
  func request() throws {
    try Self.pool.run { [self] in
      withUnsafeTemporaryAllocation(of: CChar.self, capacity: 256) { _ = PQcancel(handle, $0.baseAddress, 256) }
    }
  }
}

extension Wire {
  /// Ends the running statement, and waits until the server has confirmed its end; or else breaks the connection.
  ///
  /// Not cancelled itself; takes `cancelTimeout` at most.
  func stop() {
    settings.onCancel()
    guard let cancel else {
      isBroken = true
      return
    }
    do {
      try co_shield {
        try co_timeout(settings.cancelTimeout) {
          try cancel.request()
          // A statement that was not sent completely: the server waits for the rest.
          try flush()
          try drain()
        }
      }
    } catch { isBroken = true }
  }

  /// Reads all that is left of the statement; ends a copy.
  private func drain() throws {
    while true {
      guard let next = try nextResult() else {
        // In pipeline mode it is the end of one statement, and the sync is to come.
        if PQpipelineStatus(pg) == PQ_PIPELINE_OFF || PQstatus(pg) == CONNECTION_BAD { return }
        continue
      }
      switch next.status {
      case PGRES_PIPELINE_SYNC: return try endPipeline()
      case PGRES_COPY_IN, PGRES_COPY_BOTH:
        PQputCopyEnd(pg, "cancelled")
        try flush()
      case PGRES_COPY_OUT: while try nextCopyData() != nil {}
      case PGRES_FATAL_ERROR: _ = failure(next)  // finds a loss
      default: break
      }
      if isBroken { return }
    }
  }
}
#endif
