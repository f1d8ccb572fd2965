#if HTTP
import COpenSSL
public import Coroutine
import Glibc

/// TLS on a connection, by OpenSSL 3; usable without HTTP.
///
/// ``Server/accept(_:)`` and ``Client/start(on:host:)`` make the handshake on a `Connection`, and return a
/// ``Stream``, which has the verbs of a connection. TLS 1.2 and 1.3. OpenSSL works on memory, so no call of it
/// blocks, and all waits are those of the connection: they suspend, throw at once when the coroutine is cancelled,
/// and run in a simulated network as well. Its error queue, which belongs to a thread, is read before any wait.
///
/// A coroutine that makes handshakes needs a stack of ``leastStack``; the standard stack has 512 KiB.
public enum TLS {
  /// The least stack of a coroutine that makes handshakes: 64 KiB.
  ///
  /// OpenSSL 3.0 touches 20 KiB of it at most, on either side, with certificates on both. A server over TLS gives its
  /// connections this much, also if `Server.Options.stack` is less.
  public static var leastStack: StackSize { .bytes(64 << 10) }

  /// What a handshake has negotiated.
  public struct Session: Sendable {
    /// The version, as `TLSv1.3`.
    public let version: String
    /// The name of the cipher suite.
    public let cipher: String
    /// The application protocol that both sides know (ALPN), as `http/1.1`; nil if there is none.
    public let applicationProtocol: String?
    /// The server's name that the client has asked for (SNI); nil if it has named none.
    public let serverName: String?
    /// The certificate of the peer, DER; nil if it has shown none.
    public let peerCertificate: [UInt8]?
    /// Whether an earlier session was resumed, which saves both sides the certificates.
    public let isResumed: Bool
  }

  /// Calls `body` with memory for the sentence of an error; throws the error if `body` returns nil.
  static func checked<R>(_ body: (UnsafeMutablePointer<CChar>) -> R?) throws(TLSError) -> R {
    let text = UnsafeMutablePointer<CChar>.allocate(capacity: Int(CTLS_ERROR_SIZE))
    defer { text.deallocate() }
    text[0] = 0
    if let result = body(text) { return result }
    throw TLSError(String(cString: text))
  }

  /// Refuses a path or a name with a zero byte: OpenSSL would take the part before it, for another file or host.
  static func checkForZero(_ texts: String?...) throws(TLSError) {
    for case let text? in texts where text.utf8.contains(0) {
      throw TLSError("\"\(text.asName)\" contains a zero byte, which no path and no name has; correct it")
    }
  }

  /// The names of application protocols as TLS has them: each behind a byte with its length.
  static func encoded(_ protocols: [String]) -> [UInt8] {
    protocols.flatMap { [UInt8(clamping: $0.utf8.count)] + Array($0.utf8.prefix(255)) }
  }
}

/// Why TLS failed: a handshake, a certificate, a record, or a file that cannot be used.
public struct TLSError: Error, CustomStringConvertible {
  /// A sentence with OpenSSL's reason.
  public let description: String

  init(_ description: String) { self.description = description }
}

/// An owner of OpenSSL's settings.
final class TLSContext: @unchecked Sendable {
  // Sound because a context does not change after its creation, and its references are counted by atomics.
  let context: OpaquePointer
  init(_ context: OpaquePointer) { self.context = context }
  deinit { ctls_context_release(context) }
}
#endif
