import Coroutine
import CoroutineNet
import Testing

/// The code that the documentation of CoroutineNet shows, run.
///
/// scripts/lint holds each block of the page against this file, without regard to spaces and line breaks.
@Suite("What the page of CoroutineNet shows", .timeLimit(.minutes(10)))
struct ArticleSnippets {
  @Test func `a server answers each line, and a client reads the answer`() async throws {
    let rest = try await onCoroutine { () -> String? in
      let bound = Promise<SocketAddress>()
      let server = co_launch(name: "server") {
        try Server.run(.loopback(port: 0), onListening: { address in bound.fulfill(address) }) { connection in
          var reader = BufferedReader(connection)
          while let line = try co_timeout(.seconds(30), { try reader.readLine(max: 1_000) }) {
            try connection.write("you said \(line)\n".utf8)
          }
        }
      }
      let connection = try Connection.connect(to: try co_await(bound))
      try connection.write("hello\n".utf8)
      try connection.shutdownWrite()
      var reader = BufferedReader(connection)
      print(try reader.readLine() ?? "nothing")
      server.cancel()
      try server.join()
      return try reader.readLine()
    }
    #expect(rest == nil, "one line, one answer, and the end")
  }
}
