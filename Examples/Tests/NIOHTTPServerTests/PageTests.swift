import Clients
import Coroutine
import Foundation
import NIOCore
import NIOHTTP1
import NIOHTTPServer
import NIOPosix
import Testing

/// The server of docs/web.md, as it stands there.
private func serve(
  _ address: SocketAddress,
  on group: any EventLoopGroup,
  onListening: @escaping (any NIOCore.Channel) -> Void
) throws {
  try NIOHTTPServer.run(address, on: group, onListening: onListening) { request, response in
    switch request.path {
    case "/upload":
      var size = 0
      while let part = try request.read() { size += part.readableBytes }
      try response.send("\(size) bytes")
    case "/count":
      for number in 1...10 {
        try response.write("\(number)\n")
        try co_delay(.seconds(1))
      }
    default: throw HTTPStatusError(.notFound)
    }
  }
}

@Suite("The server of the page", .timeLimit(.minutes(5)))
struct PageTests {
  @Test func `it serves uploads`() async throws {
    try await onWorker { group in
      let port = Promise<Int>()
      let server = co_launch {
        try serve(.init(ipAddress: "127.0.0.1", port: 0), on: group) { port.fulfill($0.localAddress?.port ?? 0) }
      }
      let url = "http://127.0.0.1:\(try co_await(port))"
      let uploaded = try curl("--data-binary", "@-", "\(url)/upload", input: Data(repeating: 1, count: 300_000))
      #expect(uploaded.output == "300000 bytes")
      server.cancel()
      try server.join()
    }
  }
}
