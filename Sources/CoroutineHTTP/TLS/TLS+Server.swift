#if HTTP
import COpenSSL
import Coroutine
public import CoroutineNet

extension TLS {
  /// The certificates of a server.
  ///
  /// Copies share the certificates that are in use, so ``reload()`` of one copy counts for a server that runs.
  public struct Server: Sendable {
    /// The files of one certificate.
    struct Files: Sendable {
      let name: String?
      let chain: String
      let key: String
    }

    private struct Settings: Sendable {
      var files: [Files]
      var protocols: [String] = []
      var clientRoots: String?
      var asksClients = false
      var isClientRequired = false
    }

    private final class Shared: Sendable {
      // Not shared: a reload is seen by the handshakes that begin after it, whatever their order.
      let state: ThreadMutex<(Settings, TLSContext)>
      init(_ settings: Settings, _ context: TLSContext) { state = ThreadMutex((settings, context)) }
    }

    private let shared: Shared

    /// Reads a certificate with its chain, and its private key.
    ///
    /// - Parameters:
    ///   - certificateChain: The path of a PEM file: the certificate, then those that issued it.
    ///   - privateKey: The path of a PEM file.
    /// - Throws: ``TLSError`` if a file cannot be read, the key has a pass phrase, or it does not belong to the
    ///   certificate.
    public init(certificateChain: String, privateKey: String) throws {
      let settings = Settings(files: [Files(name: nil, chain: certificateChain, key: privateKey)])
      shared = Shared(settings, try Self.make(settings))
    }

    /// Adds a certificate for clients that ask for a server name, which may begin with `*.`.
    ///
    /// A name itself goes before a pattern, and what was added last before what was added earlier. A final dot does not
    /// count. Other clients get the first certificate. Throws as the initialiser. Any thread; counts for later
    /// handshakes.
    public func add(serverName: String, certificateChain: String, privateKey: String) throws {
      try change { $0.files.append(Files(name: serverName, chain: certificateChain, key: privateKey)) }
    }

    /// Sets the application protocols (ALPN), the preferred one first; a client that knows none of them is refused.
    public func setApplicationProtocols(_ names: [String]) throws { try change { $0.protocols = names } }

    /// Asks clients for a certificate that one of the `roots` has issued, at every server name.
    ///
    /// Sessions that were made before are not resumed: their clients make the whole handshake again. So do those whose
    /// certificate has expired since, and those that resume without tickets (TLS 1.2).
    /// - Parameters:
    ///   - roots: The path of a PEM file, or of a folder of them.
    ///   - isRequired: Whether a client without a certificate is refused.
    public func verifyClients(roots: String, isRequired: Bool = true) throws {
      try change {
        $0.clientRoots = roots
        $0.asksClients = true
        $0.isClientRequired = isRequired
      }
    }

    /// Reads all files again, for handshakes that begin later; connections that exist are not changed.
    ///
    /// Sessions can still be resumed, unless the roots of ``verifyClients(roots:isRequired:)`` have changed: a client
    /// that would not be let in now is not let in by its session either. If it throws, the certificates stay as they
    /// were. Any thread.
    public func reload() throws { try change { _ in } }

    private func change(_ body: (inout Settings) -> Void) throws {
      try shared.state.withLock { state in
        var settings = state.0
        body(&settings)
        let context = try Self.make(settings)
        ctls_context_keep_tickets(context.context, state.1.context)
        state = (settings, context)
      }
    }

    private static func make(_ settings: Settings) throws(TLSError) -> TLSContext {
      try TLS.checkForZero(settings.clientRoots)
      for files in settings.files { try TLS.checkForZero(files.name, files.chain, files.key) }
      let first = settings.files[0]
      let context = TLSContext(try TLS.checked { ctls_server_context(first.chain, first.key, $0) })
      for files in settings.files.dropFirst() {
        _ = try TLS.checked {
          ctls_context_add_name(context.context, files.name, files.chain, files.key, $0) == 1 ? true : nil
        }
      }
      if settings.asksClients {
        _ = try TLS.checked {
          ctls_context_ask_client(context.context, settings.clientRoots, settings.isClientRequired ? 1 : 0, $0) == 1
            ? true : nil
        }
      }
      if !settings.protocols.isEmpty {
        let names = TLS.encoded(settings.protocols)
        _ = ctls_context_set_protocols(context.context, names, names.count)
      }
      return context
    }

    /// Makes the handshake of an accepted connection.
    ///
    /// Suspends until it has ended; use `co_timeout` to limit its time. If it throws, the connection should be
    /// closed.
    /// - Parameters:
    ///   - connection: A connection on which TLS begins.
    ///   - bytes: What was read from it behind the last message without TLS (`BufferedReader.takeBuffered()`), as after
    ///     STARTTLS or the head of the PROXY protocol.
    /// - Throws: ``TLSError`` if the client does not speak TLS, or refuses the certificate, or shows a bad one.
    ///   `NetError`; the cancellation error.
    @available(*, noasync, message: "await the `value` of a coroutine that does this")
    public func accept(_ connection: Connection, startingWith bytes: [UInt8] = []) throws -> Stream {
      try accept(connection, startingWith: bytes) {}
    }

    /// As above; `onInput` is called when the client has sent bytes.
    func accept(_ connection: Connection, startingWith bytes: [UInt8], onInput: () throws -> Void) throws -> Stream {
      let context = shared.state.withLock { $0.1 }
      let stream = try Stream(connection, context, host: nil)
      stream.add(bytes)
      try stream.handshake(onInput: onInput)
      return stream
    }
  }
}
#endif
