import Glibc

/// The error of a socket: the operation, its address, and the cause.
///
/// Two errors are equal if they have the same cause: the same ``code``, and for errors of the library itself the same
/// kind. So `error == .closed` holds for every operation. ``address``, ``bytesWritten`` and ``description`` describe
/// the operation.
public struct NetError: Error, Equatable, CustomStringConvertible {
  /// The source of the error: a system call, or the library itself.
  enum Kind: Equatable, Sendable {
    case system
    case closed
    case busy
    case endOfStream
    case tooLong
    case badAddress(String)
    /// The program's own rule refuses all addresses of a host.
    case notAllowed(String)
    /// Of a simulated network, which cannot do it.
    case notSimulated
    /// A name without an address, with the resolver's code.
    case unresolved(String, Int32)
  }

  /// What has failed, for a program that decides by it.
  ///
  /// A later version may know more, so a `switch` over it needs a `default`.
  public struct Reason: Sendable, Hashable, CustomStringConvertible {
    private enum Name: String { case system, closed, busy, endOfStream, tooLong, noSuchName, nameServerSilent }
    private let name: Name
    /// The word, as `endOfStream`.
    public var description: String { name.rawValue }

    /// The system has refused; ``NetError/code`` says why.
    public static var system: Reason { Reason(name: .system) }
    /// The socket was closed on this side.
    public static var closed: Reason { Reason(name: .closed) }
    /// Another coroutine does the same with the socket.
    public static var busy: Reason { Reason(name: .busy) }
    /// The stream has ended too early.
    public static var endOfStream: Reason { Reason(name: .endOfStream) }
    /// A line, frame or datagram exceeds its limit.
    public static var tooLong: Reason { Reason(name: .tooLong) }
    /// A name has no address, or a text is no address.
    public static var noSuchName: Reason { Reason(name: .noSuchName) }
    /// No name server has answered: the name may exist, and a later attempt may succeed.
    public static var nameServerSilent: Reason { Reason(name: .nameServerSilent) }
  }

  let kind: Kind
  /// The system's error number (`ECONNRESET`, `EADDRINUSE`, …); 0 for an error of the library itself.
  public let code: Int32
  /// The operation that failed, as "reading from"; empty for the constants.
  let operation: String
  /// The address concerned: of the peer for a connection, of the socket itself for a listener.
  public let address: SocketAddress?
  /// The number of bytes of a failed write that the kernel had taken before the error; 0 for other operations.
  ///
  /// The peer may or may not have received them.
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
  /// Another coroutine is reading from (or writing to) the socket.
  public static var busy: NetError { NetError(.busy) }
  /// The stream ended before the requested bytes had arrived.
  public static var endOfStream: NetError { NetError(.endOfStream) }
  /// A line, frame or datagram exceeds its limit.
  public static var tooLong: NetError { NetError(.tooLong) }

  /// The cause, without the sentence for people.
  public var reason: Reason {
    switch kind {
    case .system, .notAllowed, .notSimulated: .system
    case .closed: .closed
    case .busy: .busy
    case .endOfStream: .endOfStream
    case .tooLong: .tooLong
    case .badAddress: .noSuchName
    case .unresolved(_, let resolver): Self.reason(ofResolver: resolver)
    }
  }

  /// Whether both errors have the same cause.
  public static func == (one: NetError, other: NetError) -> Bool {
    guard one.code == other.code else { return false }
    return switch (one.kind, other.kind) {
    case (.badAddress, .badAddress): true
    case (.unresolved(_, let one), .unresolved(_, let other)): one == other
    default: one.kind == other.kind
    }
  }

  /// Matches a caught error: `catch NetError.closed`.
  public static func ~= (pattern: NetError, error: any Error) -> Bool { error as? NetError == pattern }

  /// Returns the same error with `bytesWritten`.
  func with(bytesWritten: Int) -> NetError {
    NetError(kind, code: code, operation, address, bytesWritten: bytesWritten)
  }
}
