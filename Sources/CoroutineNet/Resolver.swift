import Coroutine
import Glibc

/// Looks names up with the system's resolver, on threads of its own.
///
/// getaddrinfo blocks its thread, and nothing can end it: with a name server that does not answer, it returns after the
/// resolver's timeouts, 10 to 30 seconds with the usual settings. So lookups have a pool of their own (BlockingPool):
/// - A lookup never takes a thread that `co_blocking` needs.
/// - At most `limit` lookups run at once; the others are queued. A lookup that is given up in the queue is removed from
///   it at once, and never begins.
/// - A lookup that is given up after it has begun keeps its thread until the resolver returns, and counts until then.
///   Without a limit, each attempt to reach a lost name server would leave one more thread.
final class Resolver: Sendable {
  static let shared = Resolver()

  /// As many as `co_blocking` has on most machines: a lookup waits, and its thread costs little.
  static var limit: Int { 64 }

  let pool: BlockingPool
  private let ask: @Sendable (_ host: String, _ port: UInt16) throws -> [SocketAddress]

  /// Creates a resolver; tests replace the limit, and `ask`, which blocks.
  init(
    limit: Int = Resolver.limit,
    _ ask: @escaping @Sendable (_ host: String, _ port: UInt16) throws -> [SocketAddress] = Resolver.askSystem
  ) {
    pool = BlockingPool(limit: limit, call: "SocketAddress.resolve", threadName: "co-lookup")
    self.ask = ask
  }

  /// Suspends until a thread has looked the name up.
  ///
  /// Throws the cancellation error at once.
  func resolve(_ host: String, port: UInt16) throws -> [SocketAddress] {
    try pool.run { [ask] in try ask(host, port) }
  }

  @Sendable
  private static func askSystem(_ host: String, _ port: UInt16) throws -> [SocketAddress] {
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
