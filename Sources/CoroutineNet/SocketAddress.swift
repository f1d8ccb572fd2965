import Coroutine
import Glibc

/// The address of a socket: IPv4 or IPv6 with a port, or a Unix socket.
///
/// Two addresses are equal if they are the same for the kernel. An IPv4 address that the kernel reports in IPv6 form
/// (`::ffff:127.0.0.1`, on a socket for both families) is stored as an IPv4 address. One that a program writes in that
/// form stays as it is; see ``canonical``.
public struct SocketAddress: Hashable, Sendable, CustomStringConvertible {
  enum Storage: Hashable, Sendable {
    /// The address and the port, in the processor's byte order.
    case ipv4(UInt32, UInt16)
    case ipv6(high: UInt64, low: UInt64, scope: UInt32, port: UInt16)
    /// A path; an abstract name, which begins with a zero byte; or no byte, for a socket without a name.
    case unix([UInt8])
  }

  let storage: Storage

  init(_ storage: Storage) { self.storage = storage }

  /// Returns the address of a literal IPv4 address, such as "192.0.2.1".
  ///
  /// - Throws: ``NetError`` if `host` is not four decimal numbers. Names are for ``resolve(_:port:)``.
  public static func ipv4(_ host: String, port: UInt16) throws(NetError) -> SocketAddress {
    var address = in_addr()
    guard !host.utf8.contains(0), inet_pton(AF_INET, host, &address) == 1 else {
      throw NetError(.badAddress("\"\(host.asName)\" is no IPv4 address; it has four numbers, as 192.0.2.1 has"))
    }
    return SocketAddress(.ipv4(UInt32(bigEndian: address.s_addr), port))
  }

  /// Returns the address of a literal IPv6 address, such as "2001:db8::1" or, with the interface, "fe80::1%eth0".
  ///
  /// - Throws: ``NetError`` if `host` is no IPv6 address. Names are for ``resolve(_:port:)``.
  public static func ipv6(_ host: String, port: UInt16) throws(NetError) -> SocketAddress {
    let parts = host.split(separator: "%", maxSplits: 1, omittingEmptySubsequences: false)
    var bytes = in6_addr()
    guard !host.utf8.contains(0), let literal = parts.first, inet_pton(AF_INET6, String(literal), &bytes) == 1 else {
      throw NetError(.badAddress("\"\(host.asName)\" is no IPv6 address; write it without brackets, as 2001:db8::1"))
    }
    var scope: UInt32 = 0
    if parts.count > 1 {
      scope = UInt32(parts[1]) ?? if_nametoindex(String(parts[1]))
      guard scope != 0 else {
        throw NetError(.badAddress("\"\(host.asName)\" names an interface that this machine has not"))
      }
    }
    let (high, low) = withUnsafeBytes(of: &bytes) {
      (UInt64(bigEndian: $0.loadUnaligned(as: UInt64.self)), $0.loadUnaligned(fromByteOffset: 8, as: UInt64.self))
    }
    return SocketAddress(.ipv6(high: high, low: UInt64(bigEndian: low), scope: scope, port: port))
  }

  /// Returns 127.0.0.1 with the port.
  public static func loopback(port: UInt16) -> SocketAddress { SocketAddress(.ipv4(0x7F00_0001, port)) }

  /// Returns the address of every interface, [::].
  ///
  /// A socket that is bound to it serves IPv4 as well.
  ///
  /// On a machine without IPv6, such a socket serves IPv4 only.
  public static func any(port: UInt16) -> SocketAddress {
    SocketAddress(.ipv6(high: 0, low: 0, scope: 0, port: port))
  }

  /// Returns the address of a Unix socket: a path, or "@name" for an abstract one, which is in no file system.
  ///
  /// - Throws: ``NetError`` if the text is empty, contains a zero byte, or has more than 107 bytes.
  public static func unix(_ path: String) throws(NetError) -> SocketAddress {
    var bytes = Array(path.utf8)
    guard !bytes.isEmpty, bytes != [UInt8(ascii: "@")] else {
      throw NetError(.badAddress("a Unix socket needs a path, or \"@\" and a name"))
    }
    guard !bytes.contains(0) else { throw NetError(.badAddress("a Unix socket's path contains a zero byte")) }
    guard bytes.count <= unixPathBytes else {
      throw NetError(
        .badAddress(
          "\"\(path.asName)\" has \(bytes.count) bytes, and a Unix socket's path has at most \(unixPathBytes); "
            + "use a shorter one, or an abstract name (\"@name\")"
        )
      )
    }
    if bytes[0] == UInt8(ascii: "@") { bytes[0] = 0 }
    return SocketAddress(.unix(bytes))
  }

  /// The largest number of bytes of a path: the kernel's 108 without the zero byte at the end.
  static var unixPathBytes: Int { 107 }

  /// The port; nil for a Unix socket.
  public var port: UInt16? {
    switch storage {
    case .ipv4(_, let port), .ipv6(_, _, _, let port): port
    case .unix: nil
    }
  }

  /// The IPv4 address, if this is an IPv4 address in IPv6 form (`::ffff:127.0.0.1`); all other addresses as they are.
  ///
  /// For lists of allowed addresses: compare canonical forms. The kernel treats both forms as the same peer.
  public var canonical: SocketAddress {
    guard case .ipv6(0, let low, _, let port) = storage, low >> 32 == 0xFFFF else { return self }
    return SocketAddress(.ipv4(UInt32(truncatingIfNeeded: low), port))
  }

  /// The address in the usual form: `127.0.0.1:80`, `[::1]:80`, `/run/x.sock`, `@name`.
  ///
  /// Control characters in a path or name are escaped.
  public var description: String {
    switch storage {
    case .ipv4(_, let port): return "\(host):\(port)"
    case .ipv6(_, _, let scope, let port): return "[\(host)\(scope == 0 ? "" : "%\(scope)")]:\(port)"
    case .unix(let bytes):
      guard let first = bytes.first else { return "(a socket without a name)" }
      let isAbstract = first == 0
      return (isAbstract ? "@" : "")
        + String(decoding: isAbstract ? bytes.dropFirst() : bytes[...], as: UTF8.self).asWord
    }
  }

  /// The literal address without port and interface.
  package var host: String {
    let length = Int(INET6_ADDRSTRLEN)
    return withUnsafeTemporaryAllocation(of: CChar.self, capacity: length) { text in
      switch storage {
      case .ipv4(let address, _):
        var address = address.bigEndian
        inet_ntop(AF_INET, &address, text.baseAddress, socklen_t(length))
      case .ipv6(let high, let low, _, _):
        var address = (high.bigEndian, low.bigEndian)
        inet_ntop(AF_INET6, &address, text.baseAddress, socklen_t(length))
      case .unix: return ""
      }
      return text.baseAddress.map { String(cString: $0) } ?? ""
    }
  }
}
