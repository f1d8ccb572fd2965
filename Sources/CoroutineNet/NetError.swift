import Glibc

/// The error of a socket: what was tried, at which address, and why it failed.
///
/// Two errors are equal if they have the same cause: the same ``code``, and for the errors of the library itself the
/// same kind. So `error == .closed` holds whatever was tried; what was tried is in ``address``, ``bytesWritten`` and
/// ``description``.
public struct NetError: Error, Equatable, CustomStringConvertible {
  /// What happened, if it was not the system that said so.
  enum Kind: Equatable, Sendable {
    case system
    case closed
    case busy
    case endOfStream
    case tooLong
    case badAddress(String)
    /// A name without an address, with the resolver's code.
    case unresolved(String, Int32)
  }

  let kind: Kind
  /// The system's error number (`ECONNRESET`, `EADDRINUSE`, …); 0 for an error of the library itself.
  public let code: Int32
  /// What was tried, as "reading from"; empty for the constants.
  let operation: String
  /// The address concerned: of the peer for a connection, of the socket itself for a listener.
  public let address: SocketAddress?
  /// The number of bytes of the failed write that the kernel had taken before; 0 for everything else.
  ///
  /// They may have reached the peer, or not.
  public let bytesWritten: Int

  init(
    _ kind: Kind,
    code: Int32 = 0,
    _ operation: String = "",
    _ address: SocketAddress? = nil,
    bytesWritten: Int = 0
  ) {
    self.kind = kind
    self.code = code
    self.operation = operation
    self.address = address
    self.bytesWritten = bytesWritten
  }

  /// The socket was closed on this side, before the call or while it waited.
  public static var closed: NetError { NetError(.closed) }
  /// Another coroutine is reading (or writing) at this moment.
  public static var busy: NetError { NetError(.busy) }
  /// The stream ended before there was as much as was needed.
  public static var endOfStream: NetError { NetError(.endOfStream) }
  /// A line, frame or datagram exceeds its limit.
  public static var tooLong: NetError { NetError(.tooLong) }

  /// Whether both have the same cause.
  public static func == (one: NetError, other: NetError) -> Bool {
    guard one.code == other.code else { return false }
    return switch (one.kind, other.kind) {
    case (.badAddress, .badAddress): true
    case (.unresolved(_, let one), .unresolved(_, let other)): one == other
    default: one.kind == other.kind
    }
  }

  /// The same error after `bytesWritten` bytes.
  func after(bytesWritten: Int) -> NetError {
    NetError(kind, code: code, operation, address, bytesWritten: bytesWritten)
  }
}
