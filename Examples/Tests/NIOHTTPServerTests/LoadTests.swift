import Clients
import Coroutine
import CoroutineNet
import Foundation
import NIOConcurrencyHelpers
import NIOCore
import NIOHTTPServer
import NIOPosix
import Testing

@Suite("A client that sends as fast as it can", .timeLimit(.minutes(5)))
struct LoadTests {
  /// Sends three requests at once on each connection, again and again, and compares each body with its path.
  ///
  /// A response that belongs to another request, or bytes between two of them, end in a wrong body or in an error that
  /// wrk counts.
  private static let script = """
    local requests = {}
    function init()
      for number = 1, 3 do
        requests[number] = wrk.format("POST", "/" .. number, nil, string.rep("x", 100 * number))
      end
    end
    function request() return table.concat(requests) end
    function response(status, headers, body)
      if status ~= 200 or not body:match("^/[123] [123]00$") or body:sub(2, 2) ~= body:sub(4, 4) then
        io.write("wrong: ", status, " ", body, "\\n")
      end
    end
    """

  @Test func `wrk gets the right response to each of its pipelined requests`() async throws {
    try await onWorker(loops: 2) { group in
      let script = FileManager.default.temporaryDirectory.appending(path: "coroutine-\(UUID()).lua").path
      try Self.script.write(toFile: script, atomically: true, encoding: .utf8)
      defer { try? FileManager.default.removeItem(atPath: script) }
      let served = Locked(0)
      let server = try Running(group) { request, response in
        let body = try request.collect()
        // Some wait, so that coroutines of a loop overtake each other.
        if served.withLockedValue({ count in
          count += 1
          return count % 7 == 0
        }) {
          try co_yield()
        }
        try response.send("\(request.path) \(body.readableBytes)")
      }
      let ran = try run("wrk", ["-t", "1", "-c", "64", "-d", "1s", "-s", script, server.url])
      try server.stop()
      #expect(ran.status == 0)
      for text in ["wrong: ", "Socket errors", "Non-2xx"] { #expect(!ran.output.contains(text), "\(ran.output)") }
      let requests = ran.output.split(separator: "\n").first { $0.contains(" requests in ") }
      let count = try #require(requests?.split(separator: " ").first.flatMap { Int($0) }, "\(ran.output)")
      #expect(count > 0 && count <= served.current, "\(ran.output)")
      // That wrk closes its connections, in the middle of requests too, is no error of the server.
      #expect(server.errors.current.isEmpty)
    }
  }
}
