#if HTTP
import Coroutine
import CoroutineHTTP
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

@Suite("Files as responses", .timeLimit(.minutes(5)))
struct FileTests {
  /// Calls `body` with a function that asks for a file with the bytes `0123456789`, and returns the answer.
  private func withFile(_ body: (_ get: (_ fields: String, _ method: String) throws -> String) throws -> Void) throws {
    let path = "/tmp/coroutine-http-file-\(getpid())-\(UInt64.random(in: 0 ... .max))"
    try Peer.write(Array("0123456789".utf8), to: path)
    defer { unlink(path) }
    try serving { request, response in
      try response.sendFile(
        request.path == "/none" ? path + "none" : request.path == "/folder" ? "/tmp" : path,
        type: "text/plain"
      )
    } _: { server in
      try body { fields, method in
        try ask(server.address, "\(method) HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\(fields)\r\n")
      }
    }
  }

  private func value(_ name: String, _ answer: String) -> String {
    let line = answer.components(of: "\r\n").first { $0.lowercased().hasPrefix(name + ": ") }
    return String(line?.dropFirst(name.count + 2) ?? "")
  }

  @Test func `ranges are served as the standard says`() async throws {
    try await onCoroutine {
      try withFile { get in
        for (range, status, body) in [
          ("bytes=0-3", 206, "0123"), ("bytes=3-", 206, "3456789"), ("bytes=-3", 206, "789"), ("bytes=9-99", 206, "9"),
          ("bytes=-99", 206, "0123456789"), ("bytes=10-", 416, ""), ("bytes=-0", 416, ""),
          ("bytes=3-2", 200, "0123456789"),
          ("bytes=a-b", 200, "0123456789"), ("lines=1-2", 200, "0123456789"), ("bytes=0-1,3-4", 200, "0123456789"),
          ("bytes=-", 200, "0123456789"), ("bytes=99999999999999999999-", 200, "0123456789"),
        ] {
          let answer = try get("Range: \(range)\r\n", "GET /")
          #expect(statuses(answer) == [status] && answer.body == body, "\(range): \(answer)")
          if status == 206 { #expect(value("content-range", answer).hasSuffix("/10")) }
          if status == 416 { #expect(value("content-range", answer) == "bytes */10") }
        }
      }
    }
  }

  @Test func `conditional requests are answered by the file's date and tag`() async throws {
    try await onCoroutine {
      try withFile { get in
        let first = try get("", "GET /")
        let (tag, date) = (value("etag", first), value("last-modified", first))
        #expect(first.body == "0123456789" && !tag.isEmpty && date.hasSuffix("GMT"))
        for (fields, status) in [
          ("If-None-Match: \(tag)", 304), ("If-None-Match: \"x\", W/\(tag)", 304), ("If-None-Match: *", 304),
          ("If-None-Match: \"x\"", 200), ("If-Modified-Since: \(date)", 304),
          ("If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT", 200), ("If-Modified-Since: never", 200),
          ("If-None-Match: \"x\"\r\nIf-Modified-Since: \(date)", 200), ("If-Match: \(tag)", 200),
          ("If-Match: \"x\"", 412), ("If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT", 412),
          ("If-Range: \(tag)\r\nRange: bytes=0-0", 206), ("If-Range: \"x\"\r\nRange: bytes=0-0", 200),
          ("If-Range: \(date)\r\nRange: bytes=0-0", 206),
        ] {
          #expect(try statusesOf { try get(fields + "\r\n", "GET /") } == [status], "\(fields)")
        }
        let head = try get("", "HEAD /")
        #expect(statuses(head) == [200] && head.body.isEmpty && value("content-length", head) == "10")
        #expect(try statusesOf { try get("", "GET /none") } == [404])
        #expect(try statusesOf { try get("", "GET /folder") } == [404])
      }
    }
  }
}
#endif
