import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Descriptors from elsewhere", .timeLimit(.minutes(10)))
struct AdoptionTests {
  /// A blocking socket that the system's own calls have made, with the option close-on-exec unset.
  private func foreignSocket(
    _ type: __socket_type,
    at address: SocketAddress = .loopback(port: 0),
    listening: Bool = false
  ) throws -> (Int32, SocketAddress) {
    let number = socket(AF_INET, Int32(type.rawValue), 0)
    try #require(number >= 0)
    let code = address.withSystem { bind(number, $0.assumingMemoryBound(to: sockaddr.self), $1) }
    try #require(code == 0)
    if listening { try #require(listen(number, 16) == 0) }
    return (number, try #require(SocketAddress.local(of: number)))
  }

  private func flags(_ number: Int32) -> (isNonBlocking: Bool, closesOnExec: Bool) {
    (fcntl(number, F_GETFL) & O_NONBLOCK != 0, fcntl(number, F_GETFD) & FD_CLOEXEC != 0)
  }

  private func isOpen(_ number: Int32) -> Bool { fcntl(number, F_GETFD) >= 0 }

  @Test func `a blocking listener of other code accepts after it was adopted, and is closed with its owner`()
    async throws
  {
    try await onCoroutine {
      // An address of its own: the port is free at the end, and this test connects to it until nobody listens.
      let (number, address) = try foreignSocket(SOCK_STREAM, at: ownLoopback(), listening: true)
      let listener = try Listener.adopting(number)
      #expect(listener.address == address)
      #expect(flags(number) == (true, true))
      let waiting = co_launch { try listener.accept() }
      let client = try Connection.connect(to: listener.address)
      let server = try waiting.join()
      #expect(server.noDelay)
      try client.write([1, 2])
      #expect(try server.readExactly(2) == [1, 2])
      listener.withUnsafeDescriptor { #expect($0 == number) }
      listener.close()
      listener.withUnsafeDescriptor { #expect($0 == -1) }
      try waitUntilRefused(by: listener.address)
    }
  }

  @Test func `a connection of other code is adopted with its addresses`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      let (number, address) = try foreignSocket(SOCK_STREAM)
      let code = listener.address.withSystem {
        Glibc.connect(number, $0.assumingMemoryBound(to: sockaddr.self), $1)
      }
      try #require(code == 0)
      let server = try listener.accept()
      let client = try Connection.adopting(number)
      #expect(flags(number) == (true, true))
      #expect(client.remoteAddress == listener.address && client.localAddress == address)
      #expect(client.noDelay && client.isTCP)
      let reader = co_launch { try client.read(upTo: 10) }
      try client.untilAwaited(.reading)
      try server.write([5])
      #expect(try reader.join() == [5])
      client.close()
      #expect(try server.read(upTo: 1).isEmpty)
    }
  }

  @Test func `an end of a socketpair is a connection, too`() async throws {
    try await onCoroutine {
      var ends: [Int32] = [-1, -1]
      try #require(socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0, &ends) == 0)
      let (one, other) = (try Connection.adopting(ends[0]), try Connection.adopting(ends[1]))
      try one.write("over".utf8)
      one.close()
      #expect(try other.readAll() == Array("over".utf8))
    }
  }

  @Test func `a datagram socket of other code is adopted`() async throws {
    try await onCoroutine {
      let (number, address) = try foreignSocket(SOCK_DGRAM)
      let socket = try DatagramSocket.adopting(number)
      #expect(socket.address == address)
      let other = try DatagramSocket.bind(.loopback(port: 0))
      try other.send([1, 2, 3], to: socket.address)
      try withUnsafeTemporaryAllocation(byteCount: 10, alignment: 1) { buffer in
        let (count, from, to) = try socket.receiveMessage(into: UnsafeMutableRawBufferPointer(buffer))
        #expect(count == 3 && from == other.address && to == socket.address)
      }
      socket.withUnsafeDescriptor { #expect($0 == number) }
      socket.close()
      socket.withUnsafeDescriptor { #expect($0 == -1) }
    }
  }

  private typealias Adopt = @Sendable (Int32) throws -> Void
  private static let all: [Adopt] = [
    { _ = try Connection.adopting($0) }, { _ = try Listener.adopting($0) }, { _ = try DatagramSocket.adopting($0) },
  ]

  @Test func `what is closed, and what is no socket, is refused and stays as it was`() throws {
    var pipes: [Int32] = [-1, -1]
    try #require(pipe(&pipes) == 0)
    let directory = open("/tmp", O_RDONLY | O_DIRECTORY)
    let file = open("/dev/null", O_RDWR)
    defer { for number in pipes + [directory, file] { close(number) } }
    for adopt in Self.all {
      for number in pipes + [directory, file] {
        let before = flags(number)
        #expect(code { try adopt(number) } == ENOTSOCK)
        #expect(isOpen(number) && flags(number) == before)
      }
      for number in [-1, Int32.max, Int32.min] { #expect(code { try adopt(number) } == EBADF) }
    }
  }

  @Test func `a socket of another kind is refused, says so, and stays with its owner`() throws {
    let (listener, _) = try foreignSocket(SOCK_STREAM, listening: true)
    let (bound, _) = try foreignSocket(SOCK_STREAM)
    let (datagrams, _) = try foreignSocket(SOCK_DGRAM)
    var packets: [Int32] = [-1, -1]
    try #require(socketpair(AF_UNIX, Int32(SOCK_SEQPACKET.rawValue), 0, &packets) == 0)
    let netlink = socket(AF_NETLINK, Int32(SOCK_DGRAM.rawValue), 0)
    let numbers = [listener, bound, datagrams, packets[0], packets[1], netlink]
    defer { for number in numbers { close(number) } }
    #expect(code { try Connection.adopting(listener) } == EINVAL)
    #expect(code { try Connection.adopting(bound) } == ENOTCONN)
    #expect(code { try Connection.adopting(datagrams) } == EINVAL)
    #expect(code { try Listener.adopting(bound) } == EINVAL)
    #expect(code { try Listener.adopting(datagrams) } == EINVAL)
    #expect(code { try DatagramSocket.adopting(listener) } == EINVAL)
    for adopt in Self.all { #expect(code { try adopt(packets[0]) } == ESOCKTNOSUPPORT) }
    if netlink >= 0 { #expect(code { try DatagramSocket.adopting(netlink) } == EAFNOSUPPORT) }
    for number in numbers where number >= 0 { #expect(isOpen(number) && flags(number) == (false, false)) }
    let text = netError { try Listener.adopting(datagrams) }?.description ?? ""
    #expect(text.contains("adopting descriptor \(datagrams) as a listener"), "\(text)")
  }

  @Test func `a peer that is gone is no peer`() async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      let copy = pair.server.withUnsafeDescriptor { dup($0) }
      defer { close(copy) }
      pair.client.reset()
      try until { Socket.isReadable(copy) }
      #expect(code { try Connection.adopting(copy) } == ENOTCONN)
      #expect(isOpen(copy))
    }
  }
}
