#if HTTP
import Coroutine
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

@testable import CoroutineHTTP

/// Who is let in, and under which identity: sessions, certificates of clients, names of servers.
@Suite("TLS identities", .timeLimit(.minutes(10)))
struct TLSIdentityTests {
  private typealias Echo = TLSTests.Echo

  private func server() throws -> TLS.Server {
    let files = try Certificates.shared()
    return try TLS.Server(certificateChain: files.path("server.pem"), privateKey: files.path("server.key"))
  }

  /// A client that shows the certificate `name`, or none.
  private func client(_ name: String? = nil, of base: TLS.Client = TLS.Client()) throws -> TLS.Client {
    let files = try Certificates.shared()
    var client = base
    client.trustedRoots = files.path("ca.pem")
    client.certificateChain = name.map { files.path("\($0).pem") }
    client.privateKey = name.map { files.path("\($0).key") }
    return client
  }

  /// Connects, and exchanges a byte, after which the client has the tickets of TLS 1.3.
  private func exchange(_ client: TLS.Client, _ echo: Echo, host: String = "localhost") throws -> TLS.Session {
    let connection = try Connection.connect(to: echo.listener.address)
    defer { connection.close() }
    let stream = try client.start(on: connection, host: host)
    try stream.write([1])
    guard try stream.read(upTo: 1) == [1] else { throw NetError.endOfStream }
    try stream.shutdownWrite()
    while try !stream.read(upTo: 1).isEmpty {}
    return stream.session
  }

  @Test func `copies of a client resume the sessions of their own settings, also by turns`() async throws {
    try await onCoroutine {
      let tls = try server()
      try tls.verifyClients(roots: Certificates.shared().path("ca.pem"), isRequired: false)
      let echo = try Echo(tls)
      let base = try client()
      let copies = [base, try client("client", of: base), try client("other", of: base)]
      var certificates: [[UInt8]?] = []
      for round in 0..<2 {
        for (index, copy) in copies.enumerated() {
          #expect(try exchange(copy, echo).isResumed == (round > 0))
          let shown = try echo.sessions.receive()?.peerCertificate
          if round == 0 { certificates.append(shown) } else { #expect(shown == certificates[index]) }
        }
      }
      #expect(certificates[0] == nil && certificates[1] != nil && certificates[1] != certificates[2])
      try echo.stop()
    }
  }

  @Test func `a copy with other trusted roots refuses a server that another copy has a session with`() async throws {
    try await onCoroutine {
      let echo = try Echo(try server())
      let base = try client()
      var wary = base
      wary.trustedRoots = try Certificates.shared().path("alien.pem")
      #expect(throws: TLSError.self) { try exchange(wary, echo) }
      // A connection of the one ends while the other one's settings are in use.
      do {
        let stream = try base.start(on: try Connection.connect(to: echo.listener.address), host: "localhost")
        try stream.write([1])
        _ = try stream.read(upTo: 1)
        #expect(throws: TLSError.self) { try exchange(wary, echo) }
        stream.close()
      }
      #expect(throws: TLSError.self) { try exchange(wary, echo) }
      try echo.stop()
    }
  }

  @Test func `clients of HTTP that were made of one base are who their own settings say`() async throws {
    try await onCoroutine {
      var options = HTTPServer.Options()
      let tls = try server()
      try tls.verifyClients(roots: Certificates.shared().path("ca.pem"), isRequired: false)
      options.tls = tls
      try serving(options) { request, response in
        response.fields[.connection] = "close"
        try response.send(request.tls?.peerCertificate ?? [])
      } _: { server in
        let base = try client()
        var seen: [[[UInt8]]] = []
        let clients = try [base, client("client", of: base), client("other", of: base)].map {
          var options = HTTPClient.Options()
          options.tls = $0
          return HTTPClient(options)
        }
        for _ in 0..<2 {
          seen.append(try clients.map { try $0.get("https://localhost:\(server.port)/").collect(upTo: 10_000) })
        }
        #expect(seen[0] == seen[1] && Set(seen[0]).count == 3)
      }
    }
  }

  /// A change of the rule by which clients are let in.
  enum Change: CaseIterable { case requires, asks, otherRoots }

  @Test(arguments: Change.allCases, [false, true])
  func `a session lets nobody in whom the server would refuse now`(_ change: Change, isOld: Bool) async throws {
    try await onCoroutine {
      try Peer.withFolder { folder in
        let files = try Certificates.shared()
        let roots = "\(folder)/roots.pem"
        try Peer.write(try Peer.read(files.path("ca.pem")), to: roots)
        let tls = try server()
        if change != .asks { try tls.verifyClients(roots: roots, isRequired: change == .otherRoots) }
        let echo = try Echo(tls)
        let name = change == .otherRoots ? "client" : nil
        // Returns whether the session was resumed; nil if the client was refused.
        let client = try client(name)
        let connect: () throws -> Bool? = {
          if isOld { return try connectOld(echo, name, folder) }
          do { return try exchange(client, echo).isResumed } catch is TLSError { return nil }
        }
        #expect(try connect() == false)
        #expect(try connect() == true)
        switch change {
        case .requires, .asks: try tls.verifyClients(roots: roots)
        case .otherRoots:
          try tls.reload()
          #expect(try connect() == true)
          try Peer.write(try Peer.read(files.path("alien.pem")), to: roots)
          try tls.reload()
        }
        #expect(try connect() == nil)
        try echo.stop()
      }
    }
  }

  /// Whose certificate expires: that of a client, of a client of TLS 1.2, of the server.
  enum Expiring: CaseIterable { case client, oldClient, server }

  @Test(arguments: Expiring.allCases)
  func `a session does not outlive the certificate that it stands for`(_ expiring: Expiring) async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      // On a machine under load, two handshakes may take longer than the first certificate lives.
      for seconds in [3, 15, 60] {
        let name = "brief-\(expiring)-\(seconds)"
        let end = try files.issue(name, like: expiring == .server ? "server" : "client", seconds: seconds)
        let shown = expiring == .server ? name : "server"
        let tls = try TLS.Server(certificateChain: files.path("\(shown).pem"), privateKey: files.path("\(shown).key"))
        if expiring != .server { try tls.verifyClients(roots: files.path("ca.pem")) }
        let echo = try Echo(tls)
        let client = try client(expiring == .server ? nil : name)
        let isDone = try Peer.withFolder { folder in
          // Returns whether the session was resumed; nil if one side refused the other.
          let connect: () throws -> Bool? = {
            if expiring == .oldClient { return try connectOld(echo, name, folder) }
            do { return try exchange(client, echo).isResumed } catch is TLSError { return nil }
          }
          guard try [connect(), connect()] == [false, true] else { return false }
          // Only the system's clock ends the certificate.
          while time(nil) <= end { try co_delay(.milliseconds(100)) }
          #expect(try connect() == nil)
          return true
        }
        try echo.stop()
        if isDone { return }
      }
      Issue.record("no session was resumed before its certificate had expired")
    }
  }

  /// A connection with TLS 1.2, by openssl.
  private func connectOld(_ echo: Echo, _ name: String?, _ folder: String) throws -> Bool? {
    let files = try Certificates.shared()
    let session = "\(folder)/session"
    var arguments = ["s_client", "-connect", "127.0.0.1:\(echo.port)", "-CAfile", files.path("ca.pem"), "-tls1_2"]
    arguments += ["-servername", "localhost", "-sess_out", session]
    if access(session, R_OK) == 0 { arguments += ["-sess_in", session] }
    if let name { arguments += ["-cert", files.path("\(name).pem"), "-key", files.path("\(name).key")] }
    let end = try Peer.run("openssl", arguments, input: Array("x\n".utf8))
    let text = String(decoding: end.output, as: UTF8.self)
    if end.status != 0 { return nil }
    return text.contains("Reused, TLSv1.2")
  }

  /// What is added under which name: only `other` is a certificate of other.test and *.wild.test.
  @Test(arguments: [
    ("a.wild.test", [("*.wild.test", "server"), ("a.wild.test", "other")]),
    ("a.wild.test", [("a.wild.test", "other"), ("*.wild.test", "server")]),
    ("A.Wild.test", [("*.WILD.test.", "other"), ("wild.test", "server")]),
    ("other.test", [("other.test", "server"), ("other.test", "other")]),
    ("a.wild.test", [("*.wild.test", "server"), ("*.wild.test", "other")]),
    ("other.test.", [("other.test.", "other")]),
    ("localhost.", []),
  ])
  func `a name goes before a pattern, and what was added last counts`(
    _ host: String,
    _ names: [(name: String, certificate: String)]
  ) async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      let tls = try server()
      for (name, certificate) in names {
        try tls.add(
          serverName: name,
          certificateChain: files.path("\(certificate).pem"),
          privateKey: files.path("\(certificate).key")
        )
      }
      let echo = try Echo(tls)
      _ = try exchange(client(), echo, host: host)
      try echo.stop()
    }
  }

  @Test func `a client reads its files again when it is told to, also that of a copy`() async throws {
    try await onCoroutine {
      try Peer.withFolder { folder in
        let files = try Certificates.shared()
        let roots = "\(folder)/roots.pem"
        try Peer.write(try Peer.read(files.path("alien.pem")), to: roots)
        let echo = try Echo(try server())
        var base = TLS.Client()
        base.trustedRoots = roots
        let copy = base
        #expect(throws: TLSError.self) { try exchange(copy, echo) }
        try Peer.write(try Peer.read(files.path("ca.pem")), to: roots)
        base.reload()
        #expect(try exchange(copy, echo).isResumed == false)
        #expect(try exchange(copy, echo).isResumed)
        base.reload()
        #expect(try exchange(copy, echo).isResumed == false)
        try echo.stop()
      }
    }
  }

  @Test(arguments: [0, 1_000, 100_000, 8_000_000])
  func `a request of a client that is refused says so, however much of it was sent`(_ size: Int) async throws {
    try await onCoroutine {
      var options = HTTPServer.Options()
      let tls = try server()
      try tls.verifyClients(roots: Certificates.shared().path("ca.pem"))
      options.tls = tls
      try serving(options) { _, response in
        try response.send("in")
      } _: { server in
        var options = HTTPClient.Options()
        options.tls = try client()
        let authority = "localhost:\(server.port)"
        let request = HTTPRequest(method: size == 0 ? .get : .post, scheme: "https", authority: authority, path: "/")
        let body = [UInt8](repeating: 1, count: size)
        for _ in 0..<20 {
          let error = #expect(throws: TLSError.self) { _ = try HTTPClient(options).send(request, body: body).head }
          #expect(error?.description.contains("certificate") == true)
        }
      }
    }
  }

  @Test(arguments: [false, true])
  func `clients are asked for certificates at every name, in any order of calls`(asksFirst: Bool) async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      let tls = try server()
      if asksFirst { try tls.verifyClients(roots: files.path("ca.pem")) }
      for name in ["other.test", "*.wild.test"] {
        try tls.add(
          serverName: name,
          certificateChain: files.path("other.pem"),
          privateKey: files.path("other.key")
        )
      }
      if !asksFirst { try tls.verifyClients(roots: files.path("ca.pem")) }
      let echo = try Echo(tls)
      for host in ["localhost", "other.test", "a.wild.test"] {
        _ = try exchange(client("client"), echo, host: host)
        #expect(try echo.sessions.receive()?.peerCertificate != nil)
        #expect(throws: TLSError.self) { try exchange(client(), echo, host: host) }
      }
      try echo.stop()
    }
  }
}
#endif
