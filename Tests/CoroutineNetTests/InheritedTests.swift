import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Sockets from a service manager", .timeLimit(.minutes(10)))
struct InheritedTests {
  /// What a process would see with these variables, and descriptors from `first` on.
  private func inherited(
    _ pid: String?,
    _ count: String?,
    _ names: String? = nil,
    from first: Int32 = 3
  ) -> InheritedSockets {
    InheritedSockets(from: first) { ["LISTEN_PID": pid, "LISTEN_FDS": count, "LISTEN_FDNAMES": names][$0] ?? nil }
  }

  private var own: String { "\(getpid())" }

  @Test func `without the variables, and for another process, there is none`() throws {
    let cases = [(nil, nil), (own, nil), (nil, "1"), ("\(getpid() + 1)", "1"), ("1", "nonsense"), (own, "0")]
    for (pid, count) in cases as [(String?, String?)] {
      #expect(try inherited(pid, count).listeners().isEmpty)
      #expect(try inherited(pid, count, "names:of:none").datagramSockets().isEmpty)
    }
    #expect(try Listener.inherited().isEmpty && DatagramSocket.inherited().isEmpty)
  }

  @Test func `what is no number is refused, and named`() {
    for text in ["", "-1", "+1", " 1", "1 ", "one", "1.0", "0x1", "99999999999999999999", "9223372036854775807"] {
      let error = netError { try inherited(own, text).listeners() }
      #expect(error?.code == EINVAL, "\(text)")
      #expect(error?.description.contains("LISTEN_FDS") == true, "\(String(describing: error))")
    }
    for text in ["", "0", "-77", "pid"] { #expect(code { try inherited(text, "1").listeners() } == EINVAL, "\(text)") }
  }

  @Test func `more descriptors than are open are refused`() {
    #expect(code { try inherited(own, "2000000000").listeners() } == EBADF)
    #expect(code { try inherited(own, "1", from: 1_000_000).datagramSockets() } == EBADF)
  }

  /// Two tests that look for numbers at one time would find the same ones.
  private static let search = ThreadMutex(())

  /// Numbers that follow each other, and that nothing else in this process has, as copies of `numbers`.
  private func following(_ numbers: [Int32]) throws -> Int32 {
    try Self.search.withLock { _ in
      var limits = rlimit()
      getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limits)
      // The kernel gives the lowest number that is free, so the highest ones are.
      for first in stride(from: Int32(min(limits.rlim_cur, 60_000)) - 20, to: 20, by: -20) {
        let range = first..<first + Int32(numbers.count)
        if range.contains(where: { fcntl($0, F_GETFD) >= 0 }) { continue }
        for (index, number) in numbers.enumerated() {
          try #require(fcntl(number, F_DUPFD, first + Int32(index)) == first + Int32(index))
          close(number)
        }
        return first
      }
      throw NetError.busy
    }
  }

  private func copy(_ listener: Listener) -> Int32 { listener.withUnsafeDescriptor { dup($0) } }
  private func copy(_ socket: DatagramSocket) -> Int32 { socket.withUnsafeDescriptor { dup($0) } }

  @Test func `listeners and datagram sockets are taken once, with their names`() async throws {
    try await onCoroutine {
      let (one, two) = (try Listener.bind(.loopback(port: 0)), try Listener.bind(.loopback(port: 0)))
      let datagrams = try DatagramSocket.bind(.loopback(port: 0))
      let first = try following([copy(one), copy(datagrams), copy(two)])
      let passed = inherited(own, "3", "web:dns:", from: first)
      let listeners = try passed.listeners()
      #expect(listeners.map(\.name) == ["web", "unknown"])
      #expect(listeners.map { $0.listener.withUnsafeDescriptor { $0 } } == [first, first + 2])
      #expect(listeners.map(\.listener.address) == [one.address, two.address])
      let sockets = try passed.datagramSockets()
      #expect(sockets.map(\.name) == ["dns"] && sockets[0].socket.address == datagrams.address)
      #expect(try passed.listeners().isEmpty && passed.datagramSockets().isEmpty)
      for number in first..<first + 3 { #expect(fcntl(number, F_GETFD) & FD_CLOEXEC != 0) }
      // The copy is the only one that listens now.
      one.close()
      let accepting = co_launch { try listeners[0].listener.accept() }
      let client = try Connection.connect(to: one.address)
      try client.write([1])
      #expect(try accepting.join().read(upTo: 1) == [1])
    }
  }

  @Test func `a call that throws has taken nothing, and may be repeated`() throws {
    let listener = try Listener.bind(.loopback(port: 0))
    let null = open("/dev/null", O_RDONLY)
    let first = try following([copy(listener), null])
    defer { for number in [first, first + 1] { close(number) } }
    let passed = inherited(own, "2", from: first)
    for _ in 0..<2 {
      #expect(code { try passed.listeners() } == ENOTSOCK)
      #expect(code { try passed.datagramSockets() } == ENOTSOCK)
    }
    var ends: [Int32] = [-1, -1]
    try #require(socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0, &ends) == 0)
    defer { for number in ends { close(number) } }
    dup2(ends[0], first + 1)
    // A connection, as of a unit with Accept=yes.
    #expect(code { try passed.listeners() } == EINVAL)
    #expect(fcntl(first, F_GETFD) & FD_CLOEXEC == 0)
  }

  // MARK: systemd's own program

  /// The program that this package builds beside its tests.
  private static var program: String {
    var path = [CChar](repeating: 0, count: 4_096)
    let count = readlink("/proc/self/exe", &path, path.count)
    let text = String(decoding: path.prefix(max(0, count)).map { UInt8(bitPattern: $0) }, as: UTF8.self)
    return text[..<(text.lastIndex(of: "/") ?? text.endIndex)] + "/Inherited"
  }

  /// Connects as soon as a program has bound the path.
  private static func connect(_ path: String) throws -> Connection {
    while true {
      do {
        return try Connection.connect(to: try .unix(path))
      } catch let error as NetError where error.code == ENOENT || error.code == ECONNREFUSED {
        try co_yield()
      }
    }
  }

  @Test(.enabled(if: Peer.has("systemd-socket-activate"), "systemd-socket-activate is not installed"))
  func `systemd-socket-activate passes two listeners with their names`() async throws {
    try await onCoroutine {
      let paths = [freshPath("one"), freshPath("two")]
      defer { for path in paths { unlink(path) } }
      let words = ["-l", paths[0], "-l", paths[1], "--fdname=first:second", Self.program]
      let peer = co_launch { try Peer.run("systemd-socket-activate", words) }
      defer { peer.cancel() }
      for (name, path) in zip(["first", "second"], paths) {
        let connection = try co_timeout(.seconds(60)) { try Self.connect(path) }
        try connection.write("hello\n".utf8)
        #expect(String(decoding: try connection.readAll(), as: UTF8.self) == "\(name) \(path) hello\n")
      }
      #expect(try peer.join().status == 0)
    }
  }

  @Test(.enabled(if: Peer.has("systemd-socket-activate"), "systemd-socket-activate is not installed"))
  func `systemd-socket-activate passes a datagram socket`() async throws {
    try await onCoroutine {
      let path = freshPath("datagrams")
      let own = try DatagramSocket.bind(try .unix(freshPath("own")))
      defer { unlink(path) }
      let words = ["-d", "-l", path, "--fdname=dns", Self.program]
      let peer = co_launch { try Peer.run("systemd-socket-activate", words) }
      defer { peer.cancel() }
      try until {
        let sent = code { try own.send(Array("hello".utf8), to: try .unix(path)) }
        return sent == nil
      }
      try withUnsafeTemporaryAllocation(byteCount: 512, alignment: 1) { buffer in
        let (count, _) = try co_timeout(.seconds(60)) { try own.receive(into: UnsafeMutableRawBufferPointer(buffer)) }
        let answer = String(decoding: UnsafeRawBufferPointer(buffer).prefix(count), as: UTF8.self)
        #expect(answer == "dns \(path) hello\n")
      }
      #expect(try peer.join().status == 0)
    }
  }
}
