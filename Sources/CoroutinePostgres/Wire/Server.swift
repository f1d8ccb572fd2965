#if Postgres
internal import CPostgres
import Coroutine
import Glibc

/// The parameters of a connection, as libpq reads them, and the lookup of the names in them.
///
/// libpq looks names up on the thread that calls it, which may take as long as the name server takes. So a name is
/// looked up on a thread of its own pool, and libpq gets one address at a time (`hostaddr`), with the name beside it
/// (`host`) for certificates and for .pgpass. A host with several addresses becomes as many targets.
struct Server: Sendable {
  /// What the text says.
  private let given: [String: String]

  private static let lookups = BlockingPool(limit: 16, call: "PostgresPool", threadName: "co-lookup")

  /// One that is not there, of a pool in memory.
  init() { given = [:] }

  /// Reads the text; throws `.cannotConnect` if it cannot be read.
  init(_ text: String) throws {
    // libpq would read what stands before it.
    if text.utf8.contains(0) { throw Self.unreadable("a zero byte") }
    var message: UnsafeMutablePointer<CChar>?
    guard let options = PQconninfoParse(text, &message) else {
      defer { PQfreemem(message) }
      throw Self.unreadable(message.map { Self.reason($0) } ?? "there is no memory")
    }
    given = Self.take(options)
    try refuseMisread(isURL: Self.schemes.contains { text.hasPrefix($0) })
  }

  // MARK: A text that is wrong

  // No message quotes the text: a password that is not percent-encoded, or not in quotes, is read as something else, as
  // a port, a host, a database or an option, and would be told where that is found to be wrong.

  private static let schemes = ["postgresql://", "postgres://"]

  private static func unreadable(_ reason: String) -> PostgresError {
    let rule = "in a URL, every / ? # @ : % of a password is percent-encoded; elsewhere a password stands in '…'"
    return PostgresError(.cannotConnect, "the server's description cannot be read: \(reason) (\(rule))")
  }

  /// What libpq's message means, in words of our own.
  private static func reason(_ message: UnsafePointer<CChar>) -> String {
    let text = String(cString: message)
    return [
      "missing \"=\"": "a word without =", "invalid connection option": "an option that does not exist",
      "unterminated quoted": "a value in quotes has no end",
      "invalid URI query parameter": "an option that does not exist",
      "missing key/value separator": "an option of the URL without =",
      "extra key/value separator": "an option of the URL with more than one =",
      "invalid percent-encoded": "a % without two hexadecimal digits", "forbidden value": "a zero byte",
      "unexpected character": "a character that is not expected behind an address in brackets",
      "end of string reached": "a [ without ]", "IPv6 host address": "an empty address in brackets",
    ].first { text.hasPrefix($0.key) }?.value ?? "libpq does not accept it"
  }

  /// Throws for parts that can only have been read wrongly.
  private func refuseMisread(isURL: Bool) throws {
    for port in Self.list(given["port"]) where !port.isEmpty && !(1...65_535).contains(Int(port) ?? 0) {
      throw Self.unreadable("a port that is no number from 1 to 65535")
    }
    // The name of an abstract socket begins with @.
    for host in Self.list(given["host"]) where !host.hasPrefix("/") && host.dropFirst().contains("@") {
      throw Self.unreadable("a host with an @ in it")
    }
    if isURL, given["dbname"]?.contains("@") == true { throw Self.unreadable("a database with an @ in its name") }
  }

  /// The parameters for libpq: one set for each address, in the order in which they are tried.
  ///
  /// Not one set with all of them: libpq has no limit for one address when it is polled, so a server that accepts and
  /// says nothing would keep it from the others. Suspends for the lookup.
  func targets() throws -> [[String: String]] {
    var all = given
    if let defaults = PQconndefaults() { all.merge(Self.take(defaults)) { given, _ in given } }
    if let service = all["service"], !service.isEmpty { all = try Self.lookups.run { [given] in Self.expand(given) } }
    // Kerberos is tried first, and would block: it reads a keytab, and may ask another server.
    if given["gssencmode"] == nil, getenv("PGGSSENCMODE") == nil { all["gssencmode"] = "disable" }
    all["client_encoding"] = "UTF8"
    all.merge(Self.signsOfLife) { given, _ in given }
    let each = try addresses(of: all)
    // The order of libpq: a standby if any of them is one, and else whatever is there.
    guard all["target_session_attrs"] == "prefer-standby", each.count > 1 else { return each }
    return ["standby", "any"].flatMap { kind in each.map { $0.merging(["target_session_attrs": kind]) { $1 } } }
  }

  /// So that a connection whose other side is gone without a word ends within about 30 s, and its statement with it: by
  /// the system's own settings that takes two hours, or for ever.
  private static let signsOfLife = [
    "keepalives_idle": "15", "keepalives_interval": "5", "keepalives_count": "3", "tcp_user_timeout": "30000",
  ]

  /// How long an address may take, of which `count` are left: `connect_timeout`, or else a share of the time.
  static func limit(_ parameters: [String: String], left: Duration, count: Int) -> Duration {
    if let seconds = Int(parameters["connect_timeout"] ?? ""), seconds > 0 { return min(left, .seconds(seconds)) }
    return count > 1 ? min(left / count, .seconds(5)) : left
  }

  private func addresses(of all: [String: String]) throws -> [[String: String]] {
    let hosts = Self.list(all["host"])
    let known = Self.list(all["hostaddr"])
    let ports = Self.list(all["port"])
    let count = max(hosts.count, known.count)
    // Other numbers of them are libpq's error.
    let isEven =
      [hosts.count, known.count].allSatisfy { $0 == 0 || $0 == count } && [0, 1, count].contains(ports.count)
    guard count > 0, isEven else { return [all] }
    var each: [[String: String]] = []
    var failure: PostgresError?
    for index in 0..<count {
      var one = all
      // One port counts for all hosts.
      one["port"] = ports.count > 1 ? ports[index] : ports.first
      one["host"] = hosts.isEmpty ? nil : hosts[index]
      one["hostaddr"] = known.isEmpty ? nil : known[index]
      guard let host = one["host"], Self.isName(host), one["hostaddr"]?.isEmpty != false else {
        each.append(one)
        continue
      }
      do {
        for address in try Self.lookups.run({ try Self.lookUp(host) }) {
          one["hostaddr"] = address
          each.append(one)
        }
      } catch let error as PostgresError { failure = error }
    }
    if each.isEmpty, let failure { throw failure }
    return all["load_balance_hosts"] == "random" ? each.shuffled() : each
  }

  private static func list(_ text: String?) -> [String] {
    guard let text, !text.isEmpty else { return [] }
    return text.split(separator: ",", omittingEmptySubsequences: false).map(String.init)
  }

  /// Whether it has to be looked up: it is no folder of a Unix socket, no address, and not empty.
  private static func isName(_ host: String) -> Bool {
    if host.isEmpty || host.hasPrefix("/") || host.hasPrefix("@") { return false }
    var address = in6_addr()
    return inet_pton(AF_INET, host, &address) != 1 && inet_pton(AF_INET6, host, &address) != 1
  }

  /// The addresses of a name, as text.
  ///
  /// Blocks.
  private static func lookUp(_ host: String) throws -> [String] {
    var hints = addrinfo()
    var found: UnsafeMutablePointer<addrinfo>?
    hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
    let code = getaddrinfo(host, nil, &hints, &found)
    defer { if let found { freeaddrinfo(found) } }
    guard code == 0 else {
      throw PostgresError(.cannotConnect, "'\(host)' was not found: \(String(cString: gai_strerror(code)))")
    }
    var addresses: [String] = []
    var entry = found
    while let current = entry {
      let text = withUnsafeTemporaryAllocation(of: CChar.self, capacity: Int(NI_MAXHOST)) { buffer -> String? in
        let (address, length) = (current.pointee.ai_addr, current.pointee.ai_addrlen)
        let code = getnameinfo(address, length, buffer.baseAddress, socklen_t(buffer.count), nil, 0, NI_NUMERICHOST)
        return code == 0 ? String(cString: buffer.baseAddress!) : nil
      }
      if let text, !addresses.contains(text) { addresses.append(text) }
      entry = current.pointee.ai_next
    }
    return addresses
  }

  /// What libpq makes of a service's name.
  ///
  /// It has no function for that alone, so a connection is begun. Blocks.
  private static func expand(_ given: [String: String]) -> [String: String] {
    let connection = withParameters(given) { PQconnectStartParams($0, $1, 0) }
    defer { PQfinish(connection) }
    return PQconninfo(connection).map { take($0) } ?? given
  }

  /// Reads and frees options of libpq.
  private static func take(_ options: UnsafeMutablePointer<PQconninfoOption>) -> [String: String] {
    defer { PQconninfoFree(options) }
    var values: [String: String] = [:]
    var option = options
    while let keyword = option.pointee.keyword {
      if let value = option.pointee.val { values[String(cString: keyword)] = String(cString: value) }
      option += 1
    }
    return values
  }

  /// The first line of a message.
  static func line(_ text: String) -> String { String(text.prefix { $0 != "\n" }) }
}

/// Calls `body` with the keys and the values as C strings.
func withParameters<R>(
  _ parameters: [String: String],
  _ body: (UnsafePointer<UnsafePointer<CChar>?>, UnsafePointer<UnsafePointer<CChar>?>) -> R
) -> R {
  let copies = parameters.map { (strdup($0.key), strdup($0.value)) }
  defer {
    for (key, value) in copies {
      free(key)
      free(value)
    }
  }
  let keys = copies.map { UnsafePointer($0.0) } + [nil]
  let values = copies.map { UnsafePointer($0.1) } + [nil]
  return body(keys, values)
}
#endif
