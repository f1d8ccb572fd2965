#if HTTP
import Coroutine
public import CoroutineNet
import Glibc
public import HTTPTypes

/// A client of HTTP/1.1, which keeps its connections by origin.
///
/// <!-- compiled: Tests/CoroutineHTTPTests/PageTests.swift -->
/// ```swift
/// let client = HTTPClient()
/// let url = "http://127.0.0.1:\(server.port)/notes"
/// let post = HTTPRequest(method: .post, scheme: "http", authority: "127.0.0.1:\(server.port)", path: "/notes")
/// let created = try client.send(post, body: Array("one".utf8))
/// let list = try client.get(url).collect(upTo: 100)
/// ```
///
/// Requests of many coroutines share it. No connection is used by two at a time. Every function suspends its
/// coroutine and no thread, throws at once when the coroutine is cancelled, and honours the deadline of an enclosing
/// `co_timeout`.
public final class HTTPClient: Sendable {
  /// The limits of a client.
  public struct Options: Sendable {
    /// The largest number of connections to one host; beyond it a request waits for its turn, first come, first
    /// served.
    public var connectionsOfHost = 64
    /// The time for which an unused connection is kept.
    ///
    /// A request closes those that are older. Without a further request they stay open until ``HTTPClient/close()``, or
    /// until the client is released. All of them are closed when a request finds no free descriptor.
    public var idle: Duration = .seconds(30)
    /// The largest number of redirects that are followed; with 0 or less the redirect itself is the response.
    ///
    /// Those of safe methods only. To another origin, the fields `authorization` and `cookie` are not sent. A redirect
    /// to something other than a URL of http or https, or to one with a user, is an error.
    public var redirects = 10
    /// The address to which every request goes, whatever its URL names, for example a Unix socket; nil: the URL's host.
    ///
    /// Redirects lead there too. No proxy is asked. TLS checks the name of the URL's host.
    public var address: SocketAddress?
    /// The settings of TLS.
    public var tls = TLS.Client()
    /// Decides for each address that a host or a proxy resolves to whether it may be connected to; nil allows all.
    ///
    /// It gets the `SocketAddress.canonical` form. A program that asks where strangers tell it to, as a sender of
    /// webhooks, refuses the addresses of its own network here, also those that a redirect leads to, and 0.0.0.0 and
    /// ::, which lead to this machine. A request to a host without an allowed address throws `EACCES`.
    public var isAllowed: (@Sendable (SocketAddress) -> Bool)?
    /// Creates the default options.
    public init() {}
  }

  private let options: Options
  private let proxies: Proxies
  private let pool: ClientPool

  /// Creates a client.
  ///
  /// Reads the proxies from the environment: `http_proxy`, `https_proxy`, `no_proxy`. A proxy is asked in plain text,
  /// and servers of this machine are asked without one. A proxy that is no URL is an error of each request.
  public convenience init(_ options: Options = .init()) { self.init(options, Proxies()) }

  init(_ options: Options, _ proxies: Proxies) {
    self.options = options
    self.proxies = proxies
    pool = ClientPool(mostOfHost: options.connectionsOfHost, idle: options.idle)
  }

  deinit { close() }

  /// Sends a request, and reads the head of its response.
  ///
  /// Suspends until the head has arrived, which may be before the body is sent: a server that refuses the body is not
  /// sent the rest. Safe requests follow redirects. A connection that the server had closed while it was idle is
  /// replaced once, if no byte of a response has come and the request is idempotent: it may then have been done twice.
  ///
  /// - Parameters:
  ///   - request: Has a scheme, http or https, and an authority. Its path begins with `/`, in ASCII without spaces and
  ///     without a fragment; nil is `/`, and OPTIONS may have `*`. Anything else is an error at once, and nothing is
  ///     sent. The fields of framing and `host` are the client's.
  ///   - body: The body; its length is declared.
  ///   - isIdempotent: Whether to do the request twice has the same effect as once; nil means that the method says so
  ///     (RFC 9110, 9.2.2). True for a POST with a key by which the server knows it again.
  /// - Throws: `NetError`, ``HTTPError``, ``TLSError``; the cancellation error.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func send(
    _ request: HTTPRequest,
    body: [UInt8] = [],
    isIdempotent: Bool? = nil
  ) throws -> ClientResponse {
    try HTTPError.ofUpstream { try follow(request, .bytes(body), isIdempotent ?? Self.isIdempotent(request.method)) }
  }

  private static func isIdempotent(_ method: HTTPRequest.Method) -> Bool {
    [.get, .head, .options, .trace, .put, .delete].contains(method)
  }

  /// Sends a request whose body is written in parts, and reads the head of its response.
  ///
  /// `write` runs in a coroutine of its own, while this one waits for the head, which may arrive before the body's end.
  /// If the response is no success, or is released, `write` is cancelled: its next call throws. The request is sent
  /// once: no redirect is followed, and no connection is replaced. In all other respects as
  /// ``send(_:body:isIdempotent:)``.
  ///
  /// - Parameters:
  ///   - request: As in ``send(_:body:isIdempotent:)``.
  ///   - length: The number of bytes of the body; nil sends it in chunks.
  ///   - write: Writes the body.
  /// - Throws: What `write` throws, and then the server gets no whole body; ``HTTPError`` if it writes more or less
  ///   than `length`.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func send(
    _ request: HTTPRequest,
    length: UInt64? = nil,
    _ write: @escaping @Sendable (inout RequestBody) throws -> Void
  ) throws -> ClientResponse {
    try HTTPError.ofUpstream { try follow(request, .parts(length: length, write), false) }
  }

  /// Sends a request, and those that its redirects ask for.
  private func follow(_ request: HTTPRequest, _ body: OutgoingBody, _ isIdempotent: Bool) throws -> ClientResponse {
    var request = request
    guard let scheme = request.scheme, let authority = request.authority,
      let origin = Origin(scheme: scheme, authority: authority)
    else {
      let url = "\(request.scheme ?? "")://\(request.authority ?? "")"
      throw request.authority?.contains("@") == true ? HTTPError.userInURL(url) : HTTPError.badURL(url)
    }
    let path = request.path ?? "/"
    guard RequestURL.isPath(path) || path == "*" && request.method == .options else { throw HTTPError.badPath(path) }
    var url = RequestURL(origin: origin, path: path)
    var redirects = 0
    while true {
      let response = try exchange(request, url, body, isIdempotent)
      guard options.redirects > 0, body.isRepeatable, let next = try Self.redirect(response.head, of: request, url)
      else {
        return response
      }
      redirects += 1
      if redirects > options.redirects { throw HTTPError.tooManyRedirects }
      if next.origin != url.origin {
        request.headerFields[.authorization] = nil
        request.headerFields[.cookie] = nil
        request.headerFields[.proxyAuthorization] = nil
      }
      url = next
    }
  }

  /// Gets a URL of http or https; in all other respects as ``send(_:body:isIdempotent:)``.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func get(_ url: String) throws -> ClientResponse {
    try send(HTTPRequest(url: url))
  }

  /// Closes the unused connections, and keeps no more of them; responses that are being read continue.
  ///
  /// Never suspends; any thread.
  public func close() { pool.close() }

  private static func redirect(_ head: HTTPResponse, of request: HTTPRequest, _ url: RequestURL) throws -> RequestURL? {
    guard [301, 302, 303, 307, 308].contains(head.status.code), [.get, .head, .options].contains(request.method),
      let location = head.headerFields[fields: .location].first
    else { return nil }
    return try location.withUnsafeBytesOfValue { try url.resolving(RequestURL.escaping($0)) }
  }

  // MARK: One exchange

  private func exchange(
    _ request: HTTPRequest,
    _ url: RequestURL,
    _ body: OutgoingBody,
    _ isIdempotent: Bool
  ) throws -> ClientResponse {
    let permit = try pool.acquire(url.origin)
    let proxy = options.address == nil ? try proxies.proxy(for: url.origin) : nil
    var request = request
    let isForwarded = proxy != nil && !url.origin.isSecure
    // Of the whole server, the last proxy makes the `*` (RFC 9112, 3.2.4).
    let path = isForwarded && url.path == "*" ? "" : url.path
    let target = isForwarded ? "\(url.origin.scheme)://\(url.origin.authority)\(path)" : path
    if isForwarded, let authorization = proxy?.authorization {
      request.headerFields[.proxyAuthorization] = authorization
    } else if !isForwarded {
      // It is for proxies, and not for the server.
      request.headerFields[.proxyAuthorization] = nil
    }
    var mayUseKept = true
    while true {
      let kept = mayUseKept ? pool.take(url.origin) : nil
      let connection = try kept ?? connectMakingRoom(url.origin, proxy)
      do {
        let head = try connection.exchange(request, target: target, url.origin.authority, body)
        return ClientResponse(head, connection, permit)
      } catch {
        connection.close()
        // Only a connection that was idle may have been closed before the request arrived.
        guard kept != nil, body.isRepeatable, !connection.hasReceived, isIdempotent, Self.isOfConnection(error) else {
          throw error
        }
        mayUseKept = false
      }
    }
  }

  private static func isOfConnection(_ error: any Error) -> Bool {
    error is NetError || error is TLSError || error as? HTTPError == .headIncomplete
  }

  /// As ``connect(_:_:)``; without a free descriptor it closes the unused connections first.
  private func connectMakingRoom(_ origin: Origin, _ proxy: Proxy?) throws -> ClientConnection {
    do {
      return try connect(origin, proxy)
    } catch let error as NetError where [EMFILE, ENFILE].contains(error.code) && pool.closeUnused() {
      return try connect(origin, proxy)
    }
  }

  private func connect(_ origin: Origin, _ proxy: Proxy?) throws -> ClientConnection {
    let target = proxy?.origin ?? origin
    let isAllowed = options.isAllowed
    let connection =
      try options.address.map { try Connection.connect(to: $0) }
      ?? Connection.connect(host: target.host, port: target.port) { isAllowed?($0) ?? true }
    do {
      var tls: TLS.Stream?
      if origin.isSecure {
        if let proxy { try tunnel(connection, origin, proxy) }
        tls = try options.tls.start(on: connection, host: origin.host)
      }
      return try ClientConnection(Transport(connection: connection, tls: tls))
    } catch {
      connection.close()
      throw error
    }
  }

  /// Asks a proxy for a tunnel.
  private func tunnel(_ connection: Connection, _ origin: Origin, _ proxy: Proxy) throws {
    var request = HTTPRequest(method: .connect, scheme: nil, authority: origin.withPort, path: nil)
    request.headerFields[.proxyAuthorization] = proxy.authorization
    let tunnel = try ClientConnection(Transport(connection: connection, tls: nil), ownsConnection: false)
    let head = try tunnel.exchange(request, target: origin.withPort, origin.withPort, .bytes([]))
    guard head.status.kind == .successful, tunnel.isFresh() else { throw HTTPError.proxyRefused(head.status.code) }
  }
}
#endif
