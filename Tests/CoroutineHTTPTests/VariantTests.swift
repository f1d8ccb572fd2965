#if HTTP
import Coroutine
import CoroutineHTTP
import CoroutineNet
import HTTPTypes
import Testing

/// Request variants of the kinds that are used against proxies and parsers.
///
/// Each has one right answer, or 400 (or another
/// status of an error) and a close; never two readings.
@Suite("Variants of requests", .timeLimit(.minutes(10)))
struct VariantTests {
  struct Variant: Sendable, CustomTestStringConvertible {
    let name: String
    let request: String
    /// The statuses of all answers, in order.
    ///
    /// The last request asks for a close, where one is served.
    let statuses: [Int]
    /// What the handler has read, per request: method, target, body.
    let seen: [String]
    var testDescription: String { name }

    init(_ name: String, _ request: String, _ statuses: [Int], _ seen: [String] = []) {
      self.name = name
      self.request = request
      self.statuses = statuses
      self.seen = seen
    }
  }

  static let hello = "Host: a\r\n"
  static func get(_ fields: String, line: String = "GET /x HTTP/1.1\r\n", body: String = "") -> String {
    line + hello + fields + "\r\n" + body
  }
  /// A request behind another one, which must not be served if the first one is refused.
  static let second = "GET /second HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
  static let x = "GET /x "
  static let s = "GET /second "

  static let good: [Variant] = [
    Variant("a plain request, and one behind it", get("") + second, [200, 200], [x, s]),
    Variant("an empty line before the request", "\r\n" + get("") + second, [200, 200], [x, s]),
    Variant("two empty lines before the request", "\r\n\r\n" + get("") + second, [200, 200], [x, s]),
    Variant("spaces and tabs around a value", get("A: \t b \t \r\n") + second, [200, 200], [x, s]),
    Variant("an empty value", get("A:\r\n") + second, [200, 200], [x, s]),
    Variant("an empty value of spaces", get("A:   \r\n") + second, [200, 200], [x, s]),
    Variant("bytes above 127 in a value", get("A: ä\r\n") + second, [200, 200], [x, s]),
    Variant("a tab within a value", get("A: b\tc\r\n") + second, [200, 200], [x, s]),
    Variant("every character of a token in a name", get("!#$%&'*+-.^_`|~09AZaz: 1\r\n") + second, [200, 200], [x, s]),
    Variant("HTTP/1.0 closes", "GET /x HTTP/1.0\r\n\r\n" + second, [200], [x]),
    Variant(
      "HTTP/1.0 with keep-alive",
      "GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + second,
      [200, 200],
      [x, s]
    ),
    Variant("connection: close", get("Connection: close\r\n") + second, [200], [x]),
    Variant("close in a list", get("Connection: foo, CLOSE\r\n") + second, [200], [x]),
    Variant(
      "absolute form",
      "GET http://b/x HTTP/1.1\r\nHost: a\r\n\r\n" + second,
      [200, 200],
      [x, s]
    ),
    Variant(
      "absolute form without a path",
      "GET http://b HTTP/1.1\r\nHost: a\r\n\r\n" + second,
      [200, 200],
      ["GET / ", s]
    ),
    Variant("absolute form of https", "GET https://b:1/x HTTP/1.1\r\nHost: a\r\n\r\n" + second, [200, 200], [x, s]),
    Variant("OPTIONS of the server", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n" + second, [200, 200], ["OPTIONS * ", s]),
    Variant("an empty host", "GET /x HTTP/1.1\r\nHost:\r\n\r\n" + second, [200, 200], [x, s]),
    Variant("a host of IPv6", "GET /x HTTP/1.1\r\nHost: [::1]:80\r\n\r\n" + second, [200, 200], [x, s]),
    Variant("a query", "GET /x?a=b&c HTTP/1.1\r\nHost: a\r\n\r\n" + second, [200, 200], ["GET /x?a=b&c ", s]),
    Variant("an escaped path", "GET /%2e%2e HTTP/1.1\r\nHost: a\r\n\r\n" + second, [200, 200], ["GET /%2e%2e ", s]),
    Variant("two slashes", "GET //x HTTP/1.1\r\nHost: a\r\n\r\n" + second, [200, 200], ["GET //x ", s]),
    Variant(
      "a body with a length",
      "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" + second,
      [200, 200],
      ["POST /x abc", s]
    ),
    Variant(
      "a body that begins with a line feed",
      "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n\nbc" + second,
      [200, 200],
      ["POST /x \nbc", s]
    ),
    Variant(
      "a body of GET",
      get("Content-Length: 3\r\n", body: "abc") + second,
      [200, 200],
      ["GET /x abc", s]
    ),
    Variant("a length of zero", get("Content-Length: 0\r\n") + second, [200, 200], [x, s]),
    Variant(
      "a length with leading zeros",
      get("Content-Length: 003\r\n", body: "abc") + second,
      [200, 200],
      ["GET /x abc", s]
    ),
    Variant("chunks", chunked("3\r\nabc\r\n0\r\n\r\n") + second, [200, 200], ["POST /x abc", s]),
    Variant(
      "chunks of several sizes",
      chunked("1\r\na\r\n2\r\nbc\r\n0\r\n\r\n") + second,
      [200, 200],
      ["POST /x abc", s]
    ),
    Variant(
      "a chunk size in capitals",
      chunked("A\r\n0123456789\r\n0\r\n\r\n") + second,
      [200, 200],
      ["POST /x 0123456789", s]
    ),
    Variant(
      "a chunk size with leading zeros",
      chunked("0003\r\nabc\r\n000\r\n\r\n") + second,
      [200, 200],
      ["POST /x abc", s]
    ),
    Variant("a chunk extension", chunked("3;a=b\r\nabc\r\n0\r\n\r\n") + second, [200, 200], ["POST /x abc", s]),
    Variant("trailers", chunked("3\r\nabc\r\n0\r\nA: b\r\n\r\n") + second, [200, 200], ["POST /x abc", s]),
    Variant(
      "trailers with empty values and spaces around values",
      chunked("3\r\nabc\r\n0\r\nA: \t b \t \r\nB:\r\nC:  \r\n\r\n") + second,
      [200, 200],
      ["POST /x abc", s]
    ),
    Variant("chunked in capitals", chunked("0\r\n\r\n", coding: "CHUNKED") + second, [200, 200], ["POST /x ", s]),
    Variant("a request that looks like a body", get("", body: "") + get("") + second, [200, 200, 200], [x, x, s]),
  ]

  static func chunked(_ body: String, coding: String = "chunked", fields: String = "") -> String {
    "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \(coding)\r\n\(fields)\r\n\(body)"
  }

  static let bad: [Variant] = [
    // Line ends.
    Variant("bare line feeds", "GET /x HTTP/1.1\nHost: a\n\n" + second, [400]),
    Variant("a bare line feed behind the first line", "GET /x HTTP/1.1\nHost: a\r\n\r\n" + second, [400]),
    Variant("a bare line feed behind a field", "GET /x HTTP/1.1\r\nHost: a\nA: b\r\n\r\n" + second, [400]),
    Variant("a bare line feed as the empty line", "GET /x HTTP/1.1\r\nHost: a\r\n\n" + second, [400]),
    Variant("a bare carriage return behind a field", "GET /x HTTP/1.1\r\nHost: a\rA: b\r\n\r\n" + second, [400]),
    Variant("a bare carriage return within a value", get("A: b\rc\r\n") + second, [400]),
    Variant("two carriage returns", "GET /x HTTP/1.1\r\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("two carriage returns behind a field", get("A: b\r\r\n") + second, [400]),
    Variant("a line feed before the request", "\n" + get("") + second, [400]),
    // Folded fields, names.
    Variant("a folded field", get("A: b\r\n c\r\n") + second, [400]),
    Variant("a folded field with a tab", get("A: b\r\n\tc\r\n") + second, [400]),
    Variant("a fold of nothing", get("A:\r\n c\r\n") + second, [400]),
    Variant("a folded content-length", get("Content-Length:\r\n 3\r\n", body: "abc") + second, [400]),
    Variant("a folded transfer-encoding", get("Transfer-Encoding:\r\n chunked\r\n", body: "0\r\n\r\n") + second, [400]),
    Variant("a space before the first field", "GET /x HTTP/1.1\r\n Host: a\r\n\r\n" + second, [400]),
    Variant("a space before the colon", get("A : b\r\n") + second, [400]),
    Variant("a tab before the colon", get("A\t: b\r\n") + second, [400]),
    Variant("a space before the colon of content-length", get("Content-Length : 3\r\n", body: "abc") + second, [400]),
    Variant(
      "a space before the colon of transfer-encoding",
      "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + second,
      [400]
    ),
    Variant("no colon", get("A\r\n") + second, [400]),
    Variant("no name", get(": b\r\n") + second, [400]),
    Variant("a space within a name", get("A B: c\r\n") + second, [400]),
    Variant("a control character in a name", get("A\u{1}: b\r\n") + second, [400]),
    Variant("bytes above 127 in a name", get("Ä: b\r\n") + second, [400]),
    Variant("a NUL in a name", get("A\0: b\r\n") + second, [400]),
    Variant("a NUL in a value", get("A: b\0c\r\n") + second, [400]),
    Variant("a control character in a value", get("A: b\u{1}c\r\n") + second, [400]),
    Variant("a DEL in a value", get("A: b\u{7f}c\r\n") + second, [400]),
    // The first line.
    Variant("a NUL in the target", "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a NUL in the method", "G\0ET / HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("two spaces before the target", "GET  /x HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("two spaces before the version", "GET /x  HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a tab before the target", "GET\t/x HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a tab in the target", "GET /\tx HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a space in the target", "GET /x y HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a space behind the version", "GET /x HTTP/1.1 \r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a space before the method", " GET /x HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("bytes above 127 in the target", "GET /ä HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a fragment in the target", "GET /x#y HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("no target", "GET HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("HTTP/0.9", "GET /x\r\n", [400]),
    Variant("a target without a slash", "GET x HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a target of another scheme", "GET ftp://b/x HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a target with a user", "GET http://u@b/x HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a target with a user and a host's name", "GET http://a:b@c/ HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("an absolute target without a host", "GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a star of GET", "GET * HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("CONNECT without a port", "CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("CONNECT with a path", "CONNECT /x HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("another protocol", "GET /x RTSP/1.0\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a method and the version of RTSP", "PLAY /x RTSP/1.0\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a protocol in small letters", "GET /x http/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a version without a dot", "GET /x HTTP/1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a version with two digits", "GET /x HTTP/1.10\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a version with a sign", "GET /x HTTP/+1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("HTTP/2.0", "GET /x HTTP/2.0\r\nHost: a\r\n\r\n" + second, [505]),
    Variant("HTTP/1.2", "GET /x HTTP/1.2\r\nHost: a\r\n\r\n" + second, [505]),
    Variant("HTTP/3.1", "GET /x HTTP/3.1\r\nHost: a\r\n\r\n" + second, [505]),
    Variant("an unknown method", "BREW /x HTTP/1.1\r\nHost: a\r\n\r\n" + second, [501]),
    Variant("a method in small letters", "get /x HTTP/1.1\r\nHost: a\r\n\r\n" + second, [501]),
    Variant("a method with a bracket", "G[T /x HTTP/1.1\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("a response", "HTTP/1.1 200 OK\r\nHost: a\r\n\r\n" + second, [400]),
    Variant("the hello of TLS", "\u{16}\u{3}\u{1}\u{2}", [400]),
    // Hosts.
    Variant("no host", "GET /x HTTP/1.1\r\n\r\n" + second, [400]),
    Variant("two hosts", get("Host: b\r\n") + second, [400]),
    Variant("the same host twice", get("Host: a\r\n") + second, [400]),
    Variant("two hosts of HTTP/1.0", "GET /x HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n" + second, [400]),
    Variant("a host with a path", "GET /x HTTP/1.1\r\nHost: a/b\r\n\r\n" + second, [400]),
    Variant("a host with a user", "GET /x HTTP/1.1\r\nHost: u@a\r\n\r\n" + second, [400]),
    Variant("a host with a space", "GET /x HTTP/1.1\r\nHost: a b\r\n\r\n" + second, [400]),
    Variant("a list of hosts", "GET /x HTTP/1.1\r\nHost: a, b\r\n\r\n" + second, [400]),
    Variant("a host with a port of letters", "GET /x HTTP/1.1\r\nHost: a:b\r\n\r\n" + second, [400]),
    Variant("a port that is too large", "GET /x HTTP/1.1\r\nHost: a:65536\r\n\r\n" + second, [400]),
    Variant("a host of IPv6 without an end", "GET /x HTTP/1.1\r\nHost: [::1\r\n\r\n" + second, [400]),
    // Lengths.
    Variant("two lengths", get("Content-Length: 3\r\nContent-Length: 4\r\n", body: "abcd") + second, [400]),
    Variant("the same length twice", get("Content-Length: 3\r\nContent-Length: 3\r\n", body: "abc") + second, [400]),
    Variant("a list of lengths", get("Content-Length: 3, 3\r\n", body: "abc") + second, [400]),
    Variant("an empty length", get("Content-Length:\r\n", body: "abc") + second, [400]),
    Variant("a negative length", get("Content-Length: -3\r\n", body: "abc") + second, [400]),
    Variant("a length with a sign", get("Content-Length: +3\r\n", body: "abc") + second, [400]),
    Variant("a hexadecimal length", get("Content-Length: 0x3\r\n", body: "abc") + second, [400]),
    Variant("a length with a dot", get("Content-Length: 3.0\r\n", body: "abc") + second, [400]),
    Variant("a length with a space within", get("Content-Length: 1 2\r\n", body: "abc") + second, [400]),
    Variant("a length that overflows", get("Content-Length: 18446744073709551616\r\n") + second, [400]),
    Variant("a length of letters", get("Content-Length: abc\r\n", body: "abc") + second, [400]),
    // Codings.
    Variant("a length and chunks", chunked("0\r\n\r\n", fields: "Content-Length: 3\r\n") + second, [400]),
    Variant(
      "chunks and a length before",
      "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
        + "0\r\n\r\n" + second,
      [400]
    ),
    Variant("gzip, then chunks", chunked("0\r\n\r\n", coding: "gzip, chunked") + second, [501]),
    Variant("chunked twice", chunked("0\r\n\r\n", coding: "chunked, chunked") + second, [400]),
    Variant("two fields of codings", chunked("0\r\n\r\n", fields: "Transfer-Encoding: chunked\r\n") + second, [400]),
    Variant("an empty coding before chunked", chunked("0\r\n\r\n", coding: ", chunked") + second, [501]),
    Variant("chunked with a parameter", chunked("0\r\n\r\n", coding: "chunked;a=b") + second, [400]),
    Variant("chunked is not the last", chunked("0\r\n\r\n", coding: "chunked, gzip") + second, [400]),
    Variant("identity", chunked("0\r\n\r\n", coding: "identity") + second, [400]),
    Variant("a coding with a letter before", chunked("0\r\n\r\n", coding: "xchunked") + second, [400]),
    Variant("a quoted coding", chunked("0\r\n\r\n", coding: "\"chunked\"") + second, [400]),
    Variant("a coding with a vertical tab", chunked("0\r\n\r\n", coding: "\u{b}chunked") + second, [400]),
    Variant("an empty coding", chunked("0\r\n\r\n", coding: "") + second, [400]),
    Variant(
      "a coding of HTTP/1.0",
      "POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second,
      [400]
    ),
    // Chunks.
    Variant("a chunk size that is no number", chunked("x\r\nabc\r\n0\r\n\r\n") + second, [400]),
    Variant("an empty chunk size", chunked("\r\nabc\r\n0\r\n\r\n") + second, [400]),
    Variant("a negative chunk size", chunked("-3\r\nabc\r\n0\r\n\r\n") + second, [400]),
    Variant("a chunk size with 0x", chunked("0x3\r\nabc\r\n0\r\n\r\n") + second, [400]),
    Variant("a chunk size that overflows", chunked("10000000000000003\r\nabc\r\n0\r\n\r\n") + second, [400]),
    Variant("a space before the chunk size", chunked(" 3\r\nabc\r\n0\r\n\r\n") + second, [400]),
    Variant("a bare line feed behind the chunk size", chunked("3\nabc\r\n0\r\n\r\n") + second, [400]),
    Variant("a bare line feed behind a chunk", chunked("3\r\nabc\n0\r\n\r\n") + second, [400]),
    Variant("a chunk that is longer than its size", chunked("3\r\nabcd\r\n0\r\n\r\n") + second, [400]),
    Variant("a bare line feed in an extension", chunked("3;a\nabc\r\n0\r\n\r\n") + second, [400]),
    Variant("a bare line feed behind the last chunk", chunked("0\n\n") + second, [400]),
    Variant("a chunk extension without end", chunked("3;" + String(repeating: "a", count: 40_000)), [400]),
    Variant("a trailer with a space before its colon", chunked("0\r\nA : b\r\n\r\n") + second, [400]),
    Variant("trailers without end", chunked("0\r\nA: " + String(repeating: "b", count: 40_000)), [431]),
    // Sizes and expectations.
    Variant("a large value", get("A: " + String(repeating: "b", count: 40_000) + "\r\n") + second, [431]),
    Variant("a large target", "GET /" + String(repeating: "b", count: 40_000), [431]),
    Variant("many fields", get(String(repeating: "A: b\r\n", count: 5_000)) + second, [431]),
    Variant("a large body", get("Content-Length: 9000000\r\n"), [413]),
    Variant("another expectation", get("Expect: 200-ok\r\n") + second, [417]),
  ]

  /// Sections of fields that are refused in trailers, as they are in a head, and names that belong into a head.
  static let badFields: [(name: String, text: String)] = [
    ("a line feed behind a field", "A: b\n\r\n"),
    ("a line feed behind fields", "A: b\r\n\n"),
    ("a line feed", "\n"),
    ("a carriage return behind a field", "A: b\rC: d\r\n\r\n"),
    ("two carriage returns", "A: b\r\r\n\r\n"),
    ("a fold", "A: b\r\n c\r\n\r\n"),
    ("a fold with a tab", "A: b\r\n\tc\r\n\r\n"),
    ("a fold of nothing", "A:\r\n c\r\n\r\n"),
    ("a space before the first name", " A: b\r\n\r\n"),
    ("a space before a colon", "A : b\r\n\r\n"),
    ("no name", ": b\r\n\r\n"),
    ("no colon", "A\r\n\r\n"),
    ("a NUL", "A: b\0c\r\n\r\n"),
    ("a control character", "A: b\u{1}c\r\n\r\n"),
    ("a DEL", "A: b\u{7f}c\r\n\r\n"),
    ("a length", "A: b\r\nContent-Length: 3\r\n\r\n"),
    ("a coding", "Transfer-Encoding: chunked\r\n\r\n"),
    ("a host", "HOST: b\r\nA: b\r\n\r\n"),
    ("the end of the connection", "connection: close\r\n\r\n"),
    ("trailers of trailers", "Trailer: b\r\n\r\n"),
  ]

  static let badTrailers = badFields.map {
    Variant("\($0) as trailers", chunked("1\r\na\r\n0\r\n" + $1) + second, [400])
  }

  /// What a server that ends the connection has read of the requests.
  private func check(_ variant: Variant, piecewise: Bool) throws {
    let seen = Locked<[String]>([])
    try serving { request, response in
      let body = try request.collect()
      let query = request.query.map { "?" + $0 } ?? ""
      seen.withLock {
        $0.append("\(request.method) \(request.path)\(query) \(String(decoding: body, as: UTF8.self))")
      }
      try response.send("ok")
    } _: { server in
      let client = try Connection.connect(to: server.address)
      defer { client.close() }
      let writer = co_launch {
        let bytes = Array(variant.request.utf8)
        // A refused client may have closed, or reset the connection.
        if piecewise {
          for byte in bytes { try client.write([byte]) }
        } else {
          try client.write(bytes)
        }
      }
      let answer = try co_timeout(.seconds(120)) { try client.rest() }
      writer.cancel()
      try? writer.join()
      #expect(statuses(answer) == variant.statuses, "\(answer)")
      #expect(seen.current == variant.seen)
    }
  }

  @Test(arguments: good)
  func `a valid variant has one reading`(_ variant: Variant) async throws {
    try await onCoroutine {
      try check(variant, piecewise: false)
      try check(variant, piecewise: true)
    }
  }

  @Test(arguments: bad + badTrailers)
  func `an invalid variant is refused, and nothing behind it is served`(_ variant: Variant) async throws {
    try await onCoroutine {
      try check(variant, piecewise: false)
      if variant.request.utf8.count < 1_000, variant.name != "a response" { try check(variant, piecewise: true) }
    }
  }
}
#endif
