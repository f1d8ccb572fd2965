#if HTTP
import Coroutine
import CoroutineHTTP
import CoroutineNet
import Testing

@Suite("A client that sends as fast as it can", .timeLimit(.minutes(10)))
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

  @Test(.enabled(if: Peer.has("wrk"), "needs wrk: scripts/setup http"))
  func `wrk gets the right response to each of its pipelined requests`() async throws {
    try await onCoroutine {
      let served = Locked(0)
      try serving { request, response in
        let body = try request.collect()
        // Some wait, so that coroutines overtake each other.
        let number = served.withLock { count in
          count += 1
          return count
        }
        if number.isMultiple(of: 7) { try co_yield() }
        try response.send("\(request.path) \(body.count)")
      } _: { server in
        try Peer.withFolder { folder in
          try Peer.write(Array(Self.script.utf8), to: "\(folder)/script.lua")
          let url = "http://127.0.0.1:\(server.port)"
          var count = 0
          // On a slow machine wrk may get no answer within a second.
          while count == 0 {
            let script = "\(folder)/script.lua"
            let ran = try Peer.run("wrk", "-t", "1", "-c", "64", "-d", "1s", "--timeout", "60s", "-s", script, url)
            let output = String(decoding: ran.output, as: UTF8.self)
            #expect(ran.status == 0)
            for text in ["wrong: ", "Socket errors", "Non-2xx"] { #expect(!output.contains(text), "\(output)") }
            let requests = output.split(separator: "\n").first { $0.contains(" requests in ") }
            count = try #require(requests?.split(separator: " ").first.flatMap { Int($0) }, "\(output)")
            #expect(count <= served.current, "\(output)")
          }
          // That wrk closes its connections, in the middle of requests too, is no error of the server.
          #expect(server.errors.current.isEmpty)
        }
      }
    }
  }
}
#endif
