#if HTTP
import Coroutine
import Glibc

/// Certificates that openssl has made for this run of the tests.
struct Certificates: Sendable {
  let folder: String
  func path(_ name: String) -> String { "\(folder)/\(name)" }

  private static let made = Once<Certificates>()

  /// The certificates, each as NAME.pem and NAME.key.
  ///
  /// `ca` has issued `server` (localhost, 127.0.0.1), `other` (other.test, *.wild.test), `client`, `expired`
  /// and, with a large key of another kind, `rsa`.
  /// `common` has its name, common.test, in the subject alone. Nobody has issued `alien`.
  static func shared() throws -> Certificates { try made.run { try make() } }

  private static func make() throws -> Certificates {
    var template = Array("/tmp/coroutine-http-XXXXXX".utf8CString)
    guard mkdtemp(&template) != nil else { throw Peer.Failure(text: "no folder for certificates") }
    let result = Certificates(
      folder: String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
    )
    try result.issue("ca", "/CN=test authority", nil, [])
    try result.issue("server", "/CN=localhost", "ca", ["subjectAltName=DNS:localhost,IP:127.0.0.1"])
    try result.issue("other", "/CN=other.test", "ca", ["subjectAltName=DNS:other.test,DNS:*.wild.test"])
    try result.issue("client", "/CN=client", "ca", ["subjectAltName=DNS:client"])
    try result.issue("expired", "/CN=localhost", "ca", ["subjectAltName=DNS:localhost"], days: "-1")
    try result.issue("alien", "/CN=localhost", nil, ["subjectAltName=DNS:localhost"])
    try result.issue("common", "/CN=common.test", "ca", ["keyUsage=digitalSignature"])
    try result.issue("rsa", "/CN=localhost", "ca", ["subjectAltName=DNS:localhost"], key: ["rsa:4096"])
    return result
  }

  private func issue(
    _ name: String,
    _ subject: String,
    _ issuer: String?,
    _ fields: [String],
    days: String = "2",
    key: [String] = ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
  )
    throws
  {
    var arguments =
      [
        "req", "-nodes", "-keyout", path("\(name).key"), "-subj", subject, "-newkey",
      ] + key
    if let issuer {
      try openssl(arguments + ["-out", path("\(name).csr")])
      try Peer.write(Array(fields.joined(separator: "\n").utf8), to: path("\(name).ext"))
      arguments = [
        "x509", "-req", "-in", path("\(name).csr"), "-CA", path("\(issuer).pem"), "-CAkey", path("\(issuer).key"),
        "-CAcreateserial", "-days", days, "-extfile", path("\(name).ext"), "-out", path("\(name).pem"),
      ]
      try openssl(arguments)
    } else {
      let extensions = fields.flatMap { ["-addext", $0] }
      try openssl(arguments + ["-x509", "-days", days, "-out", path("\(name).pem")] + extensions)
    }
  }

  /// Issues another certificate like `name`, which expires within seconds, as `copy`; returns its last second.
  func issue(_ copy: String, like name: String, seconds: Int) throws -> time_t {
    let base = path(copy)
    let settings = """
      [ca]
      default_ca = a
      [a]
      database = \(base).index
      new_certs_dir = \(folder)
      default_md = sha256
      rand_serial = yes
      policy = p
      [p]
      commonName = supplied
      """
    try Peer.write(Array(settings.utf8), to: "\(base).cnf")
    try Peer.write([], to: "\(base).index")
    try Peer.write(try Peer.read(path("\(name).key")), to: "\(base).key")
    let end = time(nil) + seconds
    var (second, parts) = (end, tm())
    gmtime_r(&second, &parts)
    var text = [CChar](repeating: 0, count: 20)
    strftime(&text, text.count, "%Y%m%d%H%M%SZ", &parts)
    try openssl([
      "ca", "-batch", "-notext", "-config", "\(base).cnf", "-cert", path("ca.pem"), "-keyfile",
      path("ca.key"), "-in", path("\(name).csr"), "-extfile", path("\(name).ext"), "-startdate", "20200101000000Z",
      "-enddate", String(decoding: text.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self), "-out",
      "\(base).pem",
    ])
    return end
  }

  func openssl(_ arguments: [String]) throws {
    let end = try Peer.run("openssl", arguments)
    if end.status != 0 { throw Peer.Failure(text: "openssl \(arguments.joined(separator: " ")) failed") }
  }
}
#endif
