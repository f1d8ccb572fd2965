import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Reasons of errors")
struct ReasonTests {
  @Test func `each kind of error has its reason`() {
    let reasons: [(NetError, NetError.Reason)] = [
      (.closed, .closed), (.busy, .busy), (.endOfStream, .endOfStream), (.tooLong, .tooLong),
      (NetError(code: ECONNRESET, "reading from", nil), .system),
      (NetError(.unresolved("a", EAI_NONAME), "resolving"), .noSuchName),
      (NetError(.unresolved("a", -5), "resolving"), .noSuchName),
      (NetError(.unresolved("a", EAI_AGAIN), "resolving"), .nameServerSilent),
      (NetError(.unresolved("a", EAI_SYSTEM), code: EMFILE, "resolving"), .system),
      (NetError(.unresolved("a", EAI_FAIL), "resolving"), .system),
      (NetError(.notSimulated, code: EOPNOTSUPP, "adopting"), .system),
    ]
    for (error, reason) in reasons { #expect(error.reason == reason, "\(error)") }
    #expect(netError { try SocketAddress.ipv4("300.1.1.1", port: 1) }?.reason == .noSuchName)
    #expect(netError { try SocketAddress.unix("") }?.reason == .noSuchName)
  }

  @Test func `the advice about a path is another one than about a port`() throws {
    let path = try SocketAddress.unix("/run/x.sock")
    for (code, ofPort, ofPath) in [
      (EADDRINUSE, "port", "path"), (ECONNREFUSED, "address", "path"), (EADDRNOTAVAIL, "port", "address"),
    ] {
      let (port, path) = (
        "\(NetError(code: code, "binding", .loopback(port: 1)))", "\(NetError(code: code, "binding", path))"
      )
      #expect(port.contains(ofPort) && path.contains(ofPath) && !path.contains("port"), "\(port), \(path)")
    }
  }

  @Test func `a reason stays when a write adds its bytes`() {
    let error = NetError(.closed, "writing to").with(bytesWritten: 3)
    #expect(error.reason == .closed && error.bytesWritten == 3)
  }

  @Test func `an address in IPv6 form is compared in its canonical form`() throws {
    let mapped = try SocketAddress.ipv6("::ffff:127.0.0.1", port: 80)
    #expect(mapped.canonical == .loopback(port: 80) && mapped != .loopback(port: 80))
    for address in [.loopback(port: 1), try .ipv6("::1", port: 1), try .unix("@x")] as [SocketAddress] {
      #expect(address.canonical == address)
    }
  }
}
