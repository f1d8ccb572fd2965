import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Options before bind and connect", .timeLimit(.minutes(10)))
struct OptionTests {
  private func value(_ number: Int32, _ level: Int32, _ option: Int32) -> Int32 {
    var value: Int32 = -1
    var length = socklen_t(MemoryLayout<Int32>.size)
    return getsockopt(number, level, option, &value, &length) == 0 ? value : -1
  }

  @Test func `a connection has its options before it is connected`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      var options = SocketOptions()
      options.receiveBuffer = 20_000
      options.sendBuffer = 30_000
      options.userTimeout = .microseconds(4_999_001)
      options.keepAlive = .milliseconds(6_001)
      let connection = try Connection.connect(to: listener.address, options: options)
      connection.withUnsafeDescriptor { number in
        // The system doubles both, for its own records.
        #expect(value(number, SOL_SOCKET, SO_RCVBUF) == 40_000)
        #expect(value(number, SOL_SOCKET, SO_SNDBUF) == 60_000)
        #expect(value(number, Int32(IPPROTO_TCP), TCP_USER_TIMEOUT) == 5_000)
        #expect(value(number, Int32(IPPROTO_TCP), TCP_KEEPIDLE) == 7)
        #expect(value(number, Int32(IPPROTO_TCP), TCP_KEEPINTVL) == 7)
      }
      #expect(connection.keepAlive && connection.noDelay)
      options.noDelay = nil
      let plain = try Connection.connect(to: listener.address, options: options)
      #expect(!plain.noDelay)
    }
  }

  @Test func `a connection comes from the address that was chosen for it`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      var options = SocketOptions()
      options.source = try ownLoopback()
      let connection = try Connection.connect(to: listener.address, options: options)
      let accepted = try listener.accept()
      #expect(accepted.remoteAddress.host == options.source?.host)
      #expect(connection.localAddress == accepted.remoteAddress)
      // The same port again, while it is in use.
      options.source = connection.localAddress
      let error = netError { try Connection.connect(to: listener.address, options: options) }
      #expect(error?.code == EADDRINUSE && error?.address == options.source)
    }
  }

  @Test func `a source that this machine or this family has not is refused`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      var options = SocketOptions()
      options.source = try .ipv4("192.0.2.1", port: 0)
      #expect(code { try Connection.connect(to: listener.address, options: options) } == EADDRNOTAVAIL)
      options.source = try .unix(freshPath("source"))
      let wrong = code { try Connection.connect(to: listener.address, options: options) }
      #expect(wrong == EAFNOSUPPORT || wrong == EINVAL)
    }
  }

  @Test func `options that the system refuses fail the call, and name themselves`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      let before = openDescriptors()
      let wrong: [(String, Int32, (inout SocketOptions) -> Void)] = [
        ("receive buffer", EINVAL, { $0.receiveBuffer = -1 }), ("send buffer", EINVAL, { $0.sendBuffer = .max }),
        ("TCP_USER_TIMEOUT", EINVAL, { $0.userTimeout = .seconds(-1) }),
        ("TCP_USER_TIMEOUT", EINVAL, { $0.userTimeout = .seconds(1 << 40) }),
        ("TCP_KEEPIDLE", EINVAL, { $0.keepAlive = .zero }),
        ("TCP_KEEPIDLE", EINVAL, { $0.keepAlive = .seconds(40_000) }),
      ]
      for (name, expected, change) in wrong {
        var options = SocketOptions()
        change(&options)
        let error = netError { try Connection.connect(to: listener.address, options: options) }
        #expect(error?.code == expected && error?.reason == .system, "\(name): \(String(describing: error))")
        #expect(error?.description.contains(name) == true, "\(String(describing: error))")
      }
      _ = before
    }
  }

  @Test func `options of TCP are ignored for a Unix socket`() async throws {
    try await onCoroutine {
      let path = freshPath("options")
      var options = SocketOptions()
      options.userTimeout = .seconds(1)
      options.keepAlive = .seconds(1)
      var listening = Listener.Options()
      listening.socket = options
      let listener = try Listener.bind(try .unix(path), options: listening)
      let connection = try Connection.connect(to: listener.address, options: options)
      connection.close()
    }
  }

  @Test func `accepted connections have the options of their listener`() async throws {
    try await onCoroutine {
      var options = Listener.Options()
      options.socket.receiveBuffer = 20_000
      options.socket.keepAlive = .seconds(9)
      options.socket.noDelay = false
      let listener = try Listener.bind(.loopback(port: 0), options: options)
      let client = try Connection.connect(to: listener.address)
      let server = try listener.accept()
      #expect(server.keepAlive && !server.noDelay)
      server.withUnsafeDescriptor { #expect(value($0, SOL_SOCKET, SO_RCVBUF) == 40_000) }
      client.close()
    }
  }

  @Test func `datagram sockets that join a group share its port, and each hears it`() async throws {
    try await onCoroutine {
      let first = SocketOptions.joining(try .ipv4("239.255.77.1", port: 0))
      let one: DatagramSocket
      do {
        one = try DatagramSocket.bind(try .ipv4("0.0.0.0", port: 0), options: first)
      } catch let error as NetError where error.code == ENODEV || error.code == ENETUNREACH {
        return  // No interface here has multicast.
      }
      let port = try #require(one.address.port)
      let other = try DatagramSocket.bind(try .ipv4("0.0.0.0", port: port), options: first)
      do {
        try other.send([1, 2], to: try .ipv4("239.255.77.1", port: port))
      } catch let error as NetError where error.code == ENETUNREACH {
        return
      }
      for socket in [one, other] {
        try withUnsafeTemporaryAllocation(byteCount: 10, alignment: 1) { buffer in
          let message = try co_timeout(.seconds(60)) {
            try socket.receiveMessage(into: UnsafeMutableRawBufferPointer(buffer))
          }
          #expect(message.count == 2)
          #expect(message.to == (try .ipv4("239.255.77.1", port: port)))
        }
      }
    }
  }

  @Test func `an address that is no group is refused, and a broadcast needs its option`() async throws {
    try await onCoroutine {
      let error = netError {
        try DatagramSocket.bind(.loopback(port: 0), options: .joining(try .ipv4("127.0.0.1", port: 0)))
      }
      #expect(error?.code == EINVAL)
      #expect(error?.description.contains("joining the group") == true)
      let target = try SocketAddress.ipv4("255.255.255.255", port: 9)
      let plain = try DatagramSocket.bind(try .ipv4("0.0.0.0", port: 0))
      let refused = code { try plain.send([1], to: target) }
      #expect(refused == EACCES || refused == ENETUNREACH)
      var options = SocketOptions()
      options.broadcast = true
      let allowed = try DatagramSocket.bind(try .ipv4("0.0.0.0", port: 0), options: options)
      let sent = code { try allowed.send([1], to: target) }
      #expect(sent == nil || sent == ENETUNREACH || sent == EPERM)
    }
  }
}

extension SocketOptions {
  fileprivate static func joining(_ group: SocketAddress) -> SocketOptions {
    var options = SocketOptions()
    options.multicast = [group]
    return options
  }
}
