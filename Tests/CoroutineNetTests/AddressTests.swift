import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Addresses", .timeLimit(.minutes(10)))
struct AddressTests {
  @Test func `addresses print in the usual form`() throws {
    #expect("\(SocketAddress.loopback(port: 80))" == "127.0.0.1:80")
    #expect("\(try SocketAddress.ipv4("192.0.2.1", port: 65_535))" == "192.0.2.1:65535")
    #expect("\(try SocketAddress.ipv6("::1", port: 80))" == "[::1]:80")
    #expect("\(try SocketAddress.ipv6("2001:DB8::a", port: 0))" == "[2001:db8::a]:0")
    #expect("\(try SocketAddress.ipv6("fe80::1%1", port: 1))" == "[fe80::1%1]:1")
    #expect("\(SocketAddress.any(port: 5))" == "[::]:5")
    #expect("\(try SocketAddress.unix("/run/x.sock"))" == "/run/x.sock")
    #expect("\(try SocketAddress.unix("@name"))" == "@name")
  }

  @Test func `control characters of a path or a name are escaped in every text`() throws {
    let hostile = "/run/a\nb\u{1B}[31m\u{202E}"
    let shown = #"/run/a\nb\u{1B}[31m\u{202E}"#
    let path = try SocketAddress.unix(hostile)
    #expect("\(path)" == shown)
    #expect("\(try SocketAddress.unix("@" + hostile))" == "@" + shown)
    let errors = [
      netError { try SocketAddress.ipv4(hostile, port: 1) }, netError { try SocketAddress.ipv6(hostile, port: 1) },
      netError { try SocketAddress.ipv6("fe80::1%\(hostile)", port: 1) },
      netError { try SocketAddress.unix(hostile + String(repeating: "x", count: 100)) },
      NetError(.unresolved(hostile, EAI_NONAME), "resolving"), NetError(.unresolved(hostile, EAI_AGAIN), "resolving"),
      NetError(.unresolved(hostile, EAI_SYSTEM), code: EIO, "resolving"),
      NetError(.system, code: ENOENT, "connecting to", path),
    ]
    for error in errors {
      let text = "\(try #require(error))"
      #expect(text.contains(shown), "\(text)")
      #expect(!text.unicodeScalars.contains { $0.value < 0x20 || $0.value == 0x202E })
    }
  }

  @Test func `a Unix socket has no port`() throws {
    #expect(try SocketAddress.unix("/run/x.sock").port == nil)
    #expect(SocketAddress.loopback(port: 81).port == 81)
    #expect(SocketAddress.any(port: 82).port == 82)
  }

  @Test(arguments: ["", "1.2.3", "1.2.3.256", "localhost", "::1", "1.2.3.4 ", "1.2.3.4\0", "01.2.3.4x"])
  func `what is no IPv4 address is refused with the text`(_ text: String) {
    let error = netError { try SocketAddress.ipv4(text, port: 1) }
    #expect(error?.code == 0)
    #expect("\(error.map { "\($0)" } ?? "")".contains("is no IPv4 address"))
  }

  @Test(arguments: ["", "1.2.3.4", "[::1]", ":::", "fe80::1%nosuchinterface", "::1\0"])
  func `what is no IPv6 address is refused`(_ text: String) {
    #expect(netError { try SocketAddress.ipv6(text, port: 1) } != nil)
  }

  @Test func `paths that no Unix socket can have are refused`() throws {
    #expect(netError { try SocketAddress.unix("") } != nil)
    #expect(netError { try SocketAddress.unix("@") } != nil)
    #expect(netError { try SocketAddress.unix("/a\0b") } != nil)
    #expect(netError { try SocketAddress.unix("/" + String(repeating: "x", count: 107)) } != nil)
    _ = try SocketAddress.unix("/" + String(repeating: "x", count: 106))
  }

  @Test func `an address comes back from the kernel's form`() throws {
    let addresses = [
      SocketAddress.loopback(port: 80), .any(port: 81), try .ipv6("fe80::1:2%1", port: 82), try .unix("/run/x"),
      try .unix("@abstract"), SocketAddress(.unix([])),
    ]
    for address in addresses {
      let back = address.withSystem { SocketAddress(system: $0, $1) }
      #expect(back == address)
    }
  }

  @Test func `an IPv4 address in IPv6 form is the IPv4 address`() throws {
    let address = try SocketAddress.ipv4("192.0.2.1", port: 80)
    #expect(address.withSystem(for: AF_INET6) { SocketAddress(system: $0, $1) } == address)
  }

  @Test(arguments: [
    ("::ffff:127.0.0.1", "127.0.0.1:80"), ("::ffff:7f00:1", "127.0.0.1:80"), ("::ffff:0.0.0.0", "0.0.0.0:80"),
    ("::ffff:255.255.255.255", "255.255.255.255:80"), ("::ffff:127.0.0.1%1", "127.0.0.1:80"),
    // These are other addresses, although they contain an IPv4 one.
    ("::127.0.0.1", "[::127.0.0.1]:80"), ("64:ff9b::7f00:1", "[64:ff9b::7f00:1]:80"), ("::1", "[::1]:80"),
    ("::ffff:0:127.0.0.1", "[::ffff:0:7f00:1]:80"), ("::fffe:127.0.0.1", "[::fffe:7f00:1]:80"),
    ("1::ffff:127.0.0.1", "[1::ffff:7f00:1]:80"), ("fe80::1%1", "[fe80::1%1]:80"), ("::", "[::]:80"),
  ])
  func `the canonical form of an IPv4 address in IPv6 form is the IPv4 address`(_ text: String, _ canonical: String)
    throws
  {
    let address = try SocketAddress.ipv6(text, port: 80)
    #expect("\(address.canonical)" == canonical)
    #expect(address.canonical == address.canonical.canonical)
    #expect((address.canonical == address) == (canonical.first == "["))
  }

  @Test func `other families are their own canonical form`() throws {
    for address in [
      SocketAddress.loopback(port: 80), .any(port: 81), try .ipv4("0.0.0.0", port: 0), try .unix("/run/x"),
      try .unix("@abstract"), SocketAddress(.unix([])),
    ] {
      #expect(address.canonical == address)
    }
  }

  @Test func `a literal address resolves to itself, and localhost to the loopback`() async throws {
    try await onCoroutine {
      #expect(try SocketAddress.resolve("192.0.2.7", port: 5) == [.ipv4("192.0.2.7", port: 5)])
      #expect(try SocketAddress.resolve("::1", port: 5) == [.ipv6("::1", port: 5)])
      let found = try SocketAddress.resolve("localhost", port: 5)
      #expect(found.contains(.loopback(port: 5)))
      #expect(Set(found).count == found.count)
    }
  }

  @Test(arguments: ["", "no.such.name.invalid", "a b", "x\0y"])
  func `a name without an address is an error that names it`(_ name: String) async throws {
    try await onCoroutine {
      let error = try #require(netError { try SocketAddress.resolve(name, port: 1) })
      #expect("\(error)".contains("\"\(name.replacing("\0", with: #"\0"#))\""))
      let again = try #require(netError { try Connection.connect(host: name, port: 1) })
      // A name server may answer one of two questions only.
      #expect(again == error || [again, error].contains { $0.reason == .nameServerSilent }, "\(again), \(error)")
    }
  }

  @Test func `resolving outside a coroutine is refused`() {
    #expect(throws: CoroutineError.self) { try SocketAddress.resolve("127.0.0.1", port: 1) }
  }

  @Test func `errors of one cause are equal, and say what was tried`() throws {
    let error = NetError(.closed, "reading from", .loopback(port: 9))
    #expect(error == .closed)
    #expect(error != .busy)
    #expect(NetError(code: ECONNRESET, "a", nil) == NetError(code: ECONNRESET, "b", .loopback(port: 1)))
    #expect(NetError(code: ECONNRESET, "a", nil) != NetError(code: EPIPE, "a", nil))
    #expect("\(error)".hasPrefix("reading from 127.0.0.1:9: the socket was closed"))
    let written = NetError(code: EPIPE, "writing to", .loopback(port: 9)).with(bytesWritten: 12)
    #expect("\(written)".contains("12 bytes had been written"))
    #expect(written.bytesWritten == 12)
  }
}
