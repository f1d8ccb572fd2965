#if HTTP
import COpenSSL
import Coroutine
public import CoroutineNet

extension TLS {
  /// The settings of a client: it checks the server's certificate and name, always.
  ///
  /// Copies share what was read from the files, and the sessions that can be resumed: those with equal settings only. A
  /// session lets its client in without certificates, so it stands for the trusted roots that had accepted the server,
  /// and for the certificate that the client had shown.
  public struct Client: Sendable {
    /// The path of a PEM file with trusted certificates, or of a folder of them; nil means those of the system.
    public var trustedRoots: String?
    /// The application protocols that are offered (ALPN), the preferred one first.
    public var applicationProtocols: [String] = []
    /// The path of a PEM file with a certificate that the client shows, and its chain; nil shows none.
    public var certificateChain: String?
    /// The path of a PEM file with the private key of ``certificateChain``, without a pass phrase.
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

    /// The context of some settings, which holds the trusted certificates, and the sessions that were made with it, by
    /// host.
    final class Sessions: Sendable {
      let context: TLSContext
      // Not shared: a session that is not found costs a full handshake, and nothing else.
      private let byHost = ThreadMutex<[String: TLSSessionTicket]>([:])
      private static var most: Int { 256 }

      init(_ context: TLSContext) { self.context = context }

      func take(_ host: String) -> TLSSessionTicket? { byHost.withLock { $0[host] } }
      func keep(_ session: TLSSessionTicket, of host: String) {
        byHost.withLock {
          if $0.count >= Self.most { $0.removeAll() }
          $0[host] = session
        }
      }
    }

    /// What copies share: the contexts of the settings that were used last.
    final class Cache: Sendable {
      // Not shared: which settings are known does not show, but in time. The latest one is the last.
      let known = ThreadMutex<[(key: Key, sessions: Sessions)]>([])
      /// Enough for copies that are used by turns; each context may hold all roots of the system.
      static var most: Int { 16 }
    }

    private func sessions() throws -> Sessions {
      try TLS.checkForZero(trustedRoots, certificateChain, privateKey)
      let key = Key(roots: trustedRoots, protocols: applicationProtocols, chain: certificateChain, key: privateKey)
      return try cache.known.withLock { known in
        if let index = known.lastIndex(where: { $0.key == key }) {
          let found = known[index]
          if index != known.count - 1 {
            known.remove(at: index)
            known.append(found)
          }
          return found.sessions
        }
        let sessions = Sessions(try Self.context(key))
        if known.count >= Cache.most { known.removeFirst() }
        known.append((key, sessions))
        return sessions
      }
    }

    /// Reads the files again, for later handshakes of this one and of its copies.
    ///
    /// Otherwise the files of some settings are read once, by the first handshake. An `HTTPClient` has a copy in its
    /// options. Connections that exist are not changed; sessions that were made before are not resumed. Any thread;
    /// never suspends.
    public func reload() { cache.known.withLock { $0.removeAll() } }

    private static func context(_ key: Key) throws -> TLSContext {
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
      return context
    }

    /// Makes the handshake on a connection to `host`, and checks that the certificate belongs to it.
    ///
    /// Suspends until it has ended; use `co_timeout` to limit its time. If it throws, the connection should be
    /// closed.
    /// - Parameters:
    ///   - connection: A new connection to the server.
    ///   - host: The server's name, or its address.
    /// - Throws: ``TLSError`` if the certificate is not trusted, has expired, or belongs to another host: a name counts
    ///   as a `subjectAltName`, and not in the subject (RFC 9525). Or if the peer does not speak TLS. `NetError`; the
    ///   cancellation error.
    @available(*, noasync, message: "await the `value` of a coroutine that does this")
    public func start(on connection: Connection, host: String) throws -> Stream {
      try TLS.checkForZero(host)
      // The final dot of an absolute name is in no certificate, and not sent (RFC 6066, 3).
      let host = host.hasSuffix(".") ? String(host.dropLast()) : host
      // OpenSSL checks no name if there is none, and takes one with a dot in front for all below it.
      guard let first = host.utf8.first, first != UInt8(ascii: ".") else {
        throw TLSError("\"\(host.asName)\" is no name of a host; correct it")
      }
      let sessions = try sessions()
      let stream = try Stream(connection, sessions.context, host: host)
      if let session = sessions.take(host) { stream.resume(session) }
      stream.onEnd = { sessions.keep($0, of: host) }
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
