import Dispatch
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Listeners", .timeLimit(.minutes(10)))
struct ListenerTests {
  @Test func `a port in use is an error that says so, and a closed one can be bound again`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(ownLoopback())
      #expect(listener.address.port != 0)
      let error = netError { try Listener.bind(listener.address) }
      #expect(error?.code == EADDRINUSE)
      #expect(error.map { "\($0)" }?.hasPrefix("binding \(listener.address): ") == true)
      let client = try Connection.connect(to: listener.address)
      let server = try listener.accept()
      server.close()
      listener.close()
      #expect(listener.isClosed)
      #expect(throws: NetError.closed) { try listener.accept() }
      try waitUntilRefused(by: listener.address)
      let again = try Listener.bind(listener.address)
      #expect(again.address == listener.address)
      client.close()
    }
  }

  @Test func `addresses that this machine does not have, or this user may not have, are errors`() throws {
    #expect(code { try Listener.bind(.ipv4("192.0.2.1", port: 0)) } == EADDRNOTAVAIL)
    if geteuid() != 0 { #expect(code { try Listener.bind(.loopback(port: 1)) } == EACCES) }
    #expect(code { try Listener.bind(.unix("/no/such/folder/x.sock")) } == ENOENT)
  }

  @Test func `a listener for any address serves IPv4`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.any(port: 0))
      let port = try #require(listener.address.port)
      let client = try Connection.connect(to: .loopback(port: port))
      let server = try listener.accept()
      #expect(server.remoteAddress == client.localAddress)
      #expect("\(server.remoteAddress)".hasPrefix("127.0.0.1:"))
    }
  }

  @Test func `a close wakes everyone who accepts`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      let acceptors = (0..<3).map { _ in co_launch { netError { try listener.accept() } } }
      try until { listener.socket.isAwaited(.reading) }
      try co_yield()
      listener.close()
      for acceptor in acceptors { #expect(try acceptor.join() == .closed) }
    }
  }

  @Test func `several coroutines accept every connection once`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      let count = 300
      let accepted = Channel<UInt8>(.unbounded)
      let acceptors = (0..<4).map { _ in
        co_launch {
          while true {
            let connection = try listener.accept()
            _ = accepted.trySend(try connection.read(upTo: 1)[0])
          }
        }
      }
      for index in 0..<count {
        let client = try Connection.connect(to: listener.address)
        try client.write([UInt8(truncatingIfNeeded: index)])
      }
      var seen: [UInt8: Int] = [:]
      for _ in 0..<count { seen[try #require(try accepted.receive()), default: 0] += 1 }
      #expect(seen.values.reduce(0, +) == count)
      for value in 0..<44 { #expect(seen[UInt8(value)] == 2) }
      listener.close()
      for acceptor in acceptors { #expect(throws: NetError.closed) { try acceptor.join() } }
    }
  }

  @Test func `a deadline ends accepting, and the next connection is not lost`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      for _ in 0..<20 {
        #expect(throws: TimeoutError.self) { try co_timeout(.milliseconds(1)) { try listener.accept() } }
        let client = try Connection.connect(to: listener.address)
        let server = try listener.accept()
        #expect(server.remoteAddress == client.localAddress)
      }
    }
  }

  @Test func `a Unix socket's file goes with the listener`() async throws {
    try await onCoroutine {
      let path = freshPath("unix")
      let address = try SocketAddress.unix(path)
      do {
        let listener = try Listener.bind(address)
        #expect(listener.address == address)
        #expect(code { try Listener.bind(address) } == EADDRINUSE)
        let client = try Connection.connect(to: address)
        let server = try listener.accept()
        #expect(client.remoteAddress == address && server.localAddress == address)
        #expect("\(server.remoteAddress)" == "(a socket without a name)")
        try client.write([1])
        #expect(try server.read(upTo: 3) == [1])
        #expect(access(path, F_OK) == 0)
      }
      #expect(access(path, F_OK) != 0)
    }
  }

  @Test func `a socket that a crash has left is replaced, and another's file is not`() async throws {
    try await onCoroutine {
      let path = freshPath("stale")
      let address = try SocketAddress.unix(path)
      defer { unlink(path) }
      var keeps = Listener.Options()
      keeps.unlinkPath = false
      try Listener.bind(address, options: keeps).close()
      #expect(access(path, F_OK) == 0)
      #expect(code { try Listener.bind(address, options: keeps) } == EADDRINUSE)
      try waitUntilRefused(by: address)
      let listener = try Listener.bind(address)
      // Bound by somebody else meanwhile: not ours to remove.
      unlink(path)
      let other = try Listener.bind(address)
      listener.close()
      #expect(access(path, F_OK) == 0)
      other.close()
      #expect(access(path, F_OK) != 0)
      Glibc.close(open(path, O_CREAT | O_WRONLY, 0o600))
      #expect(code { try Listener.bind(address) } == EADDRINUSE)
      #expect(access(path, F_OK) == 0)
    }
  }

  // Another process that replaces the same socket holds the lock: between its check and its bind nobody else removes
  // the file.
  @Test func `a stale socket is replaced only under the lock of its directory`() throws {
    let folder = freshPath("locked")
    mkdir(folder, 0o700)
    defer { rmdir(folder) }
    let path = "\(folder)/socket"
    let address = try SocketAddress.unix(path)
    var keeps = Listener.Options()
    keeps.unlinkPath = false
    try Listener.bind(address, options: keeps).close()
    defer { unlink(path) }
    try co_launch { try waitUntilRefused(by: address) }.blockingWait()
    let directory = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    #expect(flock(directory, LOCK_EX) == 0)
    #expect(code { try Listener.bind(address) } == EADDRINUSE)
    #expect(access(path, F_OK) == 0)
    // Without a file there is nothing to replace.
    let other = try Listener.bind(.unix("\(path)2"))
    other.close()
    // A process that another test is starting has a copy of the descriptor: its close alone would leave the lock there.
    #expect(flock(directory, LOCK_UN) == 0)
    close(directory)
    try Listener.bind(address).close()
    #expect(access(path, F_OK) != 0)
  }

  @Test func `an abstract socket needs no file`() async throws {
    try await onCoroutine {
      let address = try SocketAddress.unix("@co-net-\(getpid())")
      let listener = try Listener.bind(address)
      #expect(listener.address == address)
      let client = try Connection.connect(to: address)
      try client.write([4])
      #expect(try listener.accept().read(upTo: 3) == [4])
      listener.close()
      try waitUntilRefused(by: address)
    }
  }

  @Test func `a Unix listener that does not accept makes clients wait, not fail`() async throws {
    try await onCoroutine {
      var options = Listener.Options()
      options.backlog = 1
      let listener = try Listener.bind(try .unix("@co-net-full-\(getpid())"), options: options)
      let clients = (0..<20).map { _ in co_launch { try Connection.connect(to: listener.address) } }
      let servers = try (0..<20).map { _ in try listener.accept() }
      for client in clients { _ = try client.join() }
      #expect(servers.count == 20)
    }
  }

  @Test func `listeners of one port share its connections`() async throws {
    try await onCoroutine {
      var options = Listener.Options()
      options.reusePort = true
      let one = try Listener.bind(.loopback(port: 0), options: options)
      let other = try Listener.bind(one.address, options: options)
      var counts = [0, 0]
      for _ in 0..<64 {
        let client = try Connection.connect(to: one.address)
        try co_select {
          one.onAccept { _ in counts[0] += 1 }
          other.onAccept { _ in counts[1] += 1 }
        }
        client.close()
      }
      #expect(counts[0] > 0 && counts[1] > 0 && counts[0] + counts[1] == 64)
    }
  }

  // It gives way after 256 waits that did not have to wait.
  @Test func `a coroutine that need not wait for connections lets others run`() async throws {
    var options = Listener.Options()
    options.backlog = 400
    let listener = try Listener.bind(.loopback(port: 0), options: options)
    let waiting = 400
    let clients = try await onCoroutine { try (0..<waiting).map { _ in try Connection.connect(to: listener.address) } }
    let accepted = try await co_launch(on: DispatchQueue(label: "accepting")) {
      let isOver = Locked(false)
      let other = co_launch { isOver.withLock { $0 = true } }
      var accepted = 0
      while !isOver.current, accepted < waiting {
        try listener.accept().close()
        accepted += 1
      }
      try other.join()
      return accepted
    }.value
    #expect(accepted < waiting)
    for client in clients { client.close() }
    listener.close()
  }
}
