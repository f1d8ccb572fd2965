#if HTTP
import COpenSSL
import Coroutine
public import CoroutineNet

extension TLS {
  /// The settings of a client: it checks the server's certificate and name, always.
  ///
  /// Copies share the sessions that can be resumed.
  public struct Client: Sendable {
    /// The path of a PEM file with trusted certificates, or of a folder of them; nil means those of the system.
    public var trustedRoots: String?
    /// The application protocols that are offered (ALPN), the preferred one first.
    public var applicationProtocols: [String] = []
    /// The path of a PEM file with a certificate that the client shows, and its chain; nil shows none.
    public var certificateChain: String?
    /// The path of a PEM file with the private key of ``certificateChain``.
    public var privateKey: String?
    private let cache = Cache()

    /// Creates the default settings.
    public init() {}

    /// What of the settings a context is made of.
    struct Key: Hashable {
      let roots: String?
      let protocols: [String]
      let chain: String?
      let key: String?
    }

    /// The context of the settings, because it holds the trusted certificates, and sessions by host.
    final class Cache: Sendable {
      struct State: ~Copyable {
        var context: (key: Key, context: TLSContext)?
        var sessions: [String: TLSSessionTicket] = [:]
      }
      // Not shared: a session that is not found costs a full handshake, and nothing else.
      let state = ThreadMutex(State())
      private static var mostSessions: Int { 256 }

      func take(_ host: String) -> TLSSessionTicket? { state.withLock { $0.sessions[host] } }
      func keep(_ session: TLSSessionTicket, of host: String) {
        state.withLock {
          if $0.sessions.count >= Self.mostSessions { $0.sessions.removeAll() }
          $0.sessions[host] = session
        }
      }
    }

    private func context() throws -> TLSContext {
      try TLS.checkForZero(trustedRoots, certificateChain, privateKey)
      let key = Key(roots: trustedRoots, protocols: applicationProtocols, chain: certificateChain, key: privateKey)
      return try cache.state.withLock { state in
        if let known = state.context, known.key == key { return known.context }
        let context = TLSContext(try TLS.checked { ctls_client_context(key.roots, $0) })
        if let chain = key.chain {
          _ = try TLS.checked {
            ctls_context_use_certificate(context.context, chain, key.key ?? chain, $0) == 1 ? true : nil
          }
        }
        if !key.protocols.isEmpty {
          let names = TLS.encoded(key.protocols)
          _ = ctls_context_set_protocols(context.context, names, names.count)
        }
        state.context = (key, context)
        state.sessions = [:]
        return context
      }
    }

    /// Makes the handshake on a connection to `host`, and checks that the certificate belongs to it.
    ///
    /// Suspends until it has ended; use `co_timeout` to limit its time. If it throws, the connection should be
    /// closed.
    /// - Parameters:
    ///   - connection: A new connection to the server.
    ///   - host: The server's name, or its address.
    /// - Throws: ``TLSError`` if the certificate is not trusted, has expired, or belongs to another host; or if the
    ///   peer does not speak TLS. `NetError`; the cancellation error.
    @available(*, noasync, message: "await the `value` of a coroutine that does this")
    public func start(on connection: Connection, host: String) throws -> Stream {
      try TLS.checkForZero(host)
      let stream = try Stream(connection, try context(), host: host)
      if let session = cache.take(host) { stream.resume(session) }
      let cache = cache
      stream.onEnd = { cache.keep($0, of: host) }
      try stream.handshake()
      return stream
    }

    /// Connects to a host, and makes the handshake.
    ///
    /// As `Connection.connect(host:port:)` and ``start(on:host:)``.
    @available(*, noasync, message: "await the `value` of a coroutine that does this")
    public func connect(host: String, port: UInt16) throws -> Stream {
      let connection = try Connection.connect(host: host, port: port)
      do {
        return try start(on: connection, host: host)
      } catch {
        connection.close()
        throw error
      }
    }
  }
}

/// A session that can be resumed.
final class TLSSessionTicket: @unchecked Sendable {
  // Sound because OpenSSL counts the references to a session by atomics, and does not change a session that was
  // issued.
  let session: UnsafeMutableRawPointer
  init(_ session: UnsafeMutableRawPointer) { self.session = session }
  deinit { ctls_session_release(session) }
}
#endif
