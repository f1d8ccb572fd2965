import Coroutine
import Glibc

extension SocketAddress {
  /// Returns all addresses of a name, in the order in which the system would try them.
  ///
  /// Suspends until the system's resolver has returned, which runs on its own thread: a lookup never takes a
  /// thread of `co_blocking(_:)`. At most 64 lookups run at once, and further ones are queued. Coroutines that ask for
  /// one name at the same time share its lookup and its failure, and what it has found is used for a second more. An
  /// address in figures needs no resolver, and names of the loopback and of /etc/hosts do not wait for others.
  ///
  /// If the coroutine is cancelled, the call throws at once. A lookup that has not begun never begins, unless others
  /// wait for it. One that has begun keeps its thread until the resolver returns, with a silent name server after the
  /// resolver's timeouts, and counts as one of the 64 until then.
  ///
  /// - Throws: ``NetError`` if the name has no address. The cancellation error. `CoroutineError.notInCoroutine` outside
  ///   a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func resolve(_ host: String, port: UInt16) throws -> [SocketAddress] {
    try co_checkCancelled()
    if let literal = (try? ipv4(host, port: port)) ?? (try? ipv6(host, port: port)) { return [literal] }
    guard !host.isEmpty, !host.utf8.contains(0) else {
      throw NetError(.badAddress("\"\(host.asName)\" is no name of a host"), "resolving")
    }
    if let network = Simulated.current {
      let addresses = network.resolve(host, port: port)
      if addresses.isEmpty { throw NetError(.unresolved(host, EAI_NONAME), "resolving") }
      return addresses
    }
    return try Resolver.shared.resolve(host, port: port)
  }
}
