import Coroutine
import Glibc

extension SocketAddress {
  /// Returns all addresses of a name, in the order in which the system would try them.
  ///
  /// Suspends until the system's resolver has returned, which runs on a thread of the blocking pool
  /// (`co_blocking(_:)`). A literal address needs no resolver. If the coroutine is cancelled, the call throws at once.
  /// The resolver's thread continues until the resolver returns, and its result is dropped.
  ///
  /// - Throws: ``NetError`` if the name has no address. The cancellation error. `CoroutineError.notInCoroutine` outside
  ///   a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func resolve(_ host: String, port: UInt16) throws -> [SocketAddress] {
    try co_checkCancelled()
    if let literal = (try? ipv4(host, port: port)) ?? (try? ipv6(host, port: port)) { return [literal] }
    guard !host.isEmpty, !host.utf8.contains(0) else {
      throw NetError(.badAddress("\"\(host)\" is no name of a host"), "resolving")
    }
    if let network = Simulated.current {
      let addresses = network.resolve(host, port: port)
      if addresses.isEmpty { throw NetError(.unresolved(host, EAI_NONAME), "resolving") }
      return addresses
    }
    return try co_blocking { try lookUp(host, port) }
  }

  private static func lookUp(_ host: String, _ port: UInt16) throws -> [SocketAddress] {
    var hints = addrinfo()
    // Without this, the list has each address once for each type of socket.
    hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
    var found: UnsafeMutablePointer<addrinfo>?
    let code = getaddrinfo(host, nil, &hints, &found)
    let error = errno
    defer { if let found { freeaddrinfo(found) } }
    guard code == 0 else { throw NetError(.unresolved(host, code), code: code == EAI_SYSTEM ? error : 0, "resolving") }
    var addresses: [SocketAddress] = []
    var entry = found
    while let current = entry {
      let address = current.pointee.ai_addr.flatMap { SocketAddress(system: $0, current.pointee.ai_addrlen) }
      if let address = address?.with(port: port), !addresses.contains(address) { addresses.append(address) }
      entry = current.pointee.ai_next
    }
    guard !addresses.isEmpty else { throw NetError(.unresolved(host, EAI_NONAME), "resolving") }
    return addresses
  }
}
