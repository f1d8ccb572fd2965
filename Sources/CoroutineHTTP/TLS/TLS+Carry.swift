#if HTTP
import Coroutine
public import CoroutineNet
import Glibc

// A stream with TLS as a `Connection`: for what reads and writes connections, as a `BufferedReader` and `co_copy`.
//
//   peer == TLS <-- two coroutines carry --> outer -- pair -- inner: the program's
//
// How one end reaches the other one
//   The peer ends its output           inner reads the end; writing goes on.
//   The peer is gone, or is cut off    inner reads what is there, then ECONNRESET; a write fails. Never a mere end.
//   inner ends its output              the peer is told; reading goes on.
//   inner is closed, or `body` ends what was written leaves, the peer is told, and for a while what it sends is
//   dropped. inner is reset so is the connection below.
// A direction that ends by an error closes the connection below, or `outer`, for which the other direction waits. So
// neither outlasts the other for long, and no error is lost: it shows at `inner`. What the peer had sent before it was
// gone waits for the program to read it, for two seconds.

extension TLS.Stream {
  /// Calls `body` with a connection whose bytes go through TLS, for code that uses a `Connection`.
  ///
  /// The connection is one end of a pair of local sockets; two coroutines carry the bytes. Suspends as `body` does, and
  /// then while what was written leaves: for as long as the peer takes a part of it in two seconds, and for half a
  /// minute at most. The stream is closed then, and must not be used by others meanwhile.
  ///
  /// - If the peer ends its output as TLS demands, the connection reads the end. If it is gone without that, the
  ///   connection reads what had arrived, and then throws `ECONNRESET`.
  /// - `Connection.reset()` cuts the stream off: the peer sees no end of TLS.
  ///
  /// - Parameters:
  ///   - bytes: What was read from the stream before, which the connection reads first.
  ///   - body: Uses the connection.
  /// - Throws: What `body` throws; `NetError` if there is no descriptor for the pair.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func withConnection<R>(
    startingWith bytes: [UInt8] = [],
    _ body: (Connection) throws -> R
  ) throws -> R {
    let (inner, outer) = try Connection.pair()
    return try co_scope(failures: .isolated) { scope in
      let incoming = scope.launch(name: "from tls") { self.carryIn(bytes, inner, outer) }
      let outgoing = scope.launch(name: "to tls") { self.carryOut(inner, outer, incoming) }
      defer {
        inner.close()
        leave(outgoing, incoming)
        connection.close()
        outer.close()
        outgoing.cancel()
        incoming.cancel()
      }
      return try body(inner)
    }
  }

  /// Waits until what was written has left; a peer that takes nothing does not keep the coroutines.
  private func leave(_ outgoing: Job<Void>, _ incoming: Job<Void>) {
    for _ in 0..<15 {
      let before = (connection.bytesWritten, connection.unsentCount)
      do {
        return try co_timeout(.seconds(2)) {
          try outgoing.join()
          incoming.cancel()
          try incoming.join()
          try connection.closeLingering()
        }
      } catch {
        if co_isCancelled || (connection.bytesWritten, connection.unsentCount) == before { return }
      }
    }
  }

  private func carryIn(_ first: [UInt8], _ inner: Connection, _ outer: Connection) {
    var isOfProgram = true
    do {
      try outer.write(first)
      while true {
        isOfProgram = false
        let bytes = try read(upTo: 16_384)
        isOfProgram = true
        if bytes.isEmpty { return try outer.shutdownWrite() }
        try outer.write(bytes)
      }
    } catch {
      // The program has closed its end: the other direction does the rest.
      if isOfProgram { return }
      outer.closeResetting(inner)
      // A write to a peer that is gone might wait.
      connection.close()
    }
  }

  private func carryOut(_ inner: Connection, _ outer: Connection, _ incoming: Job<Void>) {
    do {
      while case let bytes = try next(inner, outer), !bytes.isEmpty { try write(bytes) }
      if inner.wasReset { return connection.reset() }
      try shutdownWrite()
      guard inner.isClosed else { return }
      incoming.cancel()
      try incoming.join()
    } catch {}
    // Of a program that still writes, the bytes would have no reader.
    guard !inner.isClosed else {
      _ = try? connection.closeLingering()
      return
    }
    connection.close()
    // A program that only writes leaves the other direction no room.
    _ = try? co_timeout(.seconds(2)) { try incoming.join() }
    outer.closeResetting(inner)
  }

  private func next(_ inner: Connection, _ outer: Connection) throws -> [UInt8] {
    do {
      return try outer.read(upTo: 16_384)
    } catch let error as NetError where error.code == ECONNRESET && inner.isClosed {
      // It was closed with bytes of the peer that it has not read; its own have been read before that.
      return []
    }
  }
}
#endif
