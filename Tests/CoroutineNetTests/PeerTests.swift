import Coroutine
import CoroutineNet
import Glibc
import Testing

/// Servers of CoroutineNet against clients that other people wrote.
@Suite("Real peers", .timeLimit(.minutes(10)))
struct PeerTests {
  // Compared outside of #expect, which would look for the differences of a million bytes for hours.
  private static let megabyte = (0..<1_000_000).map { UInt8(truncatingIfNeeded: $0 &* 0x9E37 >> 7) }

  /// Runs `client` beside a server, and returns what it printed.
  private static func serving(
    _ handle: @escaping @Sendable (Connection) throws -> Void,
    _ client: @escaping @Sendable (SocketAddress) throws -> Peer.End
  ) async throws -> Peer.End {
    try await onCoroutine {
      let bound = Promise<SocketAddress>()
      let address = try ownLoopback()
      let server = co_launch { try Server.run(address, onListening: { bound.fulfill($0) }, handle) }
      defer { server.cancel() }
      let end = try client(try co_await(bound))
      server.cancel()
      try server.join()
      return end
    }
  }

  @Sendable private static func echo(_ connection: Connection) throws {
    while true {
      let bytes = try connection.read(upTo: 4_096)
      if bytes.isEmpty { return }
      try connection.write(bytes)
    }
  }

  @Test(.enabled(if: Peer.has("socat"), "socat is not installed"))
  func `socat sends a megabyte, shuts down its direction, and gets all of it back`() async throws {
    let end = try await Self.serving(Self.echo) { address in
      try Peer.run("socat", "-t", "200", "-", "TCP:\(address)", input: Self.megabyte)
    }
    #expect(end.status == 0)
    let isSame = end.output == Self.megabyte
    #expect(isSame)
  }

  @Test(.enabled(if: Peer.has("socat"), "socat is not installed"))
  func `a server of socat echoes to a client of CoroutineNet`() async throws {
    let path = "/tmp/coroutine-peer-\(getpid()).socket"
    defer { unlink(path) }
    let received = try await onCoroutine {
      let peer = co_launch { try Peer.run("socat", "-t", "200", "UNIX-LISTEN:\(path)", "EXEC:cat") }
      defer { peer.cancel() }
      let connection = try connect(to: .unix(path))
      let writer = co_launch {
        try connection.write(Self.megabyte)
        try connection.shutdownWrite()
      }
      let received = try connection.readAll()
      try writer.join()
      connection.close()
      _ = try peer.join()
      return received
    }
    let isSame = received == Self.megabyte
    #expect(isSame)
  }

  /// Connects as soon as the other program listens.
  private func connect(to address: SocketAddress) throws -> Connection {
    var connection: Connection?
    try until {
      do { connection = try Connection.connect(to: address) } catch let error as NetError
        where error.code == ECONNREFUSED || error.code == ENOENT
      {}
      return connection != nil
    }
    return try #require(connection)
  }

  @Test(.enabled(if: Peer.has("curl"), "curl is not installed"))
  func `curl gets three answers on one connection`() async throws {
    let end = try await Self.serving(Self.answer) { address in
      let pages = ["one", "two", "three"].map { "http://\(address)/\($0)" }
      let format = ["--silent", "--show-error", "--max-time", "200", "--write-out", "%{http_code} %{num_connects}\\n"]
      return try Peer.run("curl", format + pages)
    }
    #expect(end.status == 0)
    #expect(
      String(decoding: end.output, as: UTF8.self) == "you asked for /one\n200 1\nyou asked for /two\n200 0\n"
        + "you asked for /three\n200 0\n"
    )
  }

  /// The smallest server that keeps the rules of HTTP/1.1 for requests without a body.
  @Sendable private static func answer(_ connection: Connection) throws {
    var reader = BufferedReader(connection)
    while let request = try reader.readLine() {
      while let field = try reader.readLine(), !field.isEmpty {}
      let body = "you asked for \(request.split(separator: " ")[1])\n"
      try connection.write("HTTP/1.1 200 OK\r\nContent-Length: \(body.utf8.count)\r\n\r\n\(body)".utf8)
    }
  }

  @Test(.enabled(if: Peer.has("go"), "Go is not installed"))
  func `Go's client sends on sixteen connections at once, and gets every byte back in order`() async throws {
    let source = "/tmp/coroutine-peer-\(getpid()).go"
    defer { unlink(source) }
    try Peer.write(Array(Self.goClient.utf8), to: source)
    // Whatever the user has set for Go. The cache stays, because a newer Go compiles its library into it.
    let settings = [
      "CGO_ENABLED=0", "GO111MODULE=off", "GOENV=off", "GOFLAGS=", "GOTOOLCHAIN=local",
      "GOCACHE=/tmp/coroutine-peer-\(getuid()).gocache", "GOPATH=/tmp/coroutine-peer-\(getuid()).gopath",
    ]
    let end = try await Self.serving(Self.echo) { address in
      try Peer.run("env", settings + ["go", "run", source, "\(address)"])
    }
    #expect(String(decoding: end.output, as: UTF8.self) == "16 connections, 3200000 bytes\n")
    #expect(end.status == 0)
  }

  private static let goClient = """
    package main

    import (
      "bytes"
      "fmt"
      "io"
      "math/rand"
      "net"
      "os"
    )

    func main() {
      ends := make(chan int)
      for i := 0; i < 16; i++ {
        go func(seed int64) {
          sent := make([]byte, 200000)
          rand.New(rand.NewSource(seed)).Read(sent)
          connection, err := net.Dial("tcp", os.Args[1])
          if err != nil { panic(err) }
          go func() {
            for rest := sent; len(rest) > 0; {
              n := 1 + rand.Intn(9000)
              if n > len(rest) { n = len(rest) }
              if _, err := connection.Write(rest[:n]); err != nil { panic(err) }
              rest = rest[n:]
            }
            connection.(*net.TCPConn).CloseWrite()
          }()
          received, err := io.ReadAll(connection)
          if err != nil { panic(err) }
          if !bytes.Equal(sent, received) { panic("other bytes came back") }
          ends <- len(received)
        }(int64(i))
      }
      total := 0
      for i := 0; i < 16; i++ { total += <-ends }
      fmt.Printf("16 connections, %d bytes\\n", total)
    }
    """
}
