#if HTTP
import CLLHTTP
import Coroutine
import CoroutineHTTP
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

@Suite("Files as responses", .timeLimit(.minutes(10)))
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

  /// Answers with a file and a status, and returns the answer to `GET`.
  private func answer(
    _ path: String,
    _ status: HTTPResponse.Status = .ok,
    fields: String = "",
    method: String = "GET"
  ) throws -> String {
    try serving { _, response in
      response.status = status
      try response.sendFile(path, type: "text/plain")
    } _: { server in
      try ask(server.address, "\(method) / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\(fields)\r\n")
    }
  }

  private func withTime(_ seconds: Int, _ body: (String) throws -> Void) throws {
    let path = "/tmp/coroutine-http-time-\(getpid())-\(UInt64.random(in: 0 ... .max))"
    try Peer.write(Array("0123456789".utf8), to: path)
    defer { unlink(path) }
    let times = [timespec(tv_sec: seconds, tv_nsec: 0), timespec(tv_sec: seconds, tv_nsec: 0)]
    #expect(utimensat(AT_FDCWD, path, times, 0) == 0)
    try body(path)
  }

  @Test(arguments: [
    (-1, "Wed, 31 Dec 1969 23:59:59 GMT"), (0, "Thu, 01 Jan 1970 00:00:00 GMT"), (-2_000_000_000, "1906"),
    (4_000_000_000, "2096"), (253_402_300_799, ""), (1 << 40, ""), (Int.max, ""), (Int.min, ""),
  ])
  func `a file of any time is served`(_ seconds: Int, _ date: String) async throws {
    try await onCoroutine {
      try withTime(seconds) { path in
        var info = stat()
        stat(path, &info)
        let first = try answer(path)
        #expect(statuses(first) == [200] && first.body == "0123456789", "\(first)")
        let shown = value("last-modified", first)
        // The file system may have clamped an absurd time to one that it has.
        if info.st_mtim.tv_sec == seconds { #expect(date.isEmpty || shown.contains(date), "\(first)") }
        #expect(shown.isEmpty || shown.utf8.count == 29)
        let unchanged = statuses(try answer(path, fields: "If-None-Match: \(value("etag", first))\r\n"))
        #expect(unchanged == [304])
        if !shown.isEmpty {
          let unmodified = statuses(try answer(path, fields: "If-Modified-Since: \(shown)\r\n"))
          #expect(unmodified == [304])
        }
      }
    }
  }

  @Test(arguments: [Int64.min, -62_135_596_801, -30_610_224_001, 253_402_300_800, 1 << 50, .max])
  func `a time that has no date of HTTP writes nothing`(_ seconds: Int64) {
    var text = [CChar](repeating: 42, count: 29)
    #expect(chttp_format_time(seconds, &text) == 0)
    #expect(text.allSatisfy { $0 == 42 })
  }

  @Test func `a file is the page of another status, whatever the client's conditions are`() async throws {
    try await onCoroutine {
      try withTime(1_000_000_000) { path in
        let tag = value("etag", try answer(path))
        let conditions = [
          "If-None-Match: \(tag)", "If-None-Match: *", "If-Match: \"x\"", "Range: bytes=0-3", "Range: bytes=99-",
          "If-Modified-Since: Sun, 09 Sep 2001 01:46:40 GMT", "If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT",
        ]
        for status in [HTTPResponse.Status.notFound, .internalServerError, .forbidden] {
          for condition in conditions {
            let page = try answer(path, status, fields: condition + "\r\n")
            #expect(statuses(page) == [status.code] && page.body == "0123456789", "\(condition): \(page)")
            #expect(value("etag", page).isEmpty && value("last-modified", page).isEmpty)
          }
        }
        // A condition holds for every success, a range for 200.
        let created = statuses(try answer(path, .created, fields: "If-None-Match: \(tag)\r\n"))
        #expect(created == [304])
        let ranged = statuses(try answer(path, .created, fields: "Range: bytes=0-3\r\n"))
        #expect(ranged == [201])
      }
    }
  }

  @Test func `a file of proc is sent with its contents`() async throws {
    try await onCoroutine {
      let expected = String(decoding: try Peer.read("/proc/version"), as: UTF8.self)
      let whole = try answer("/proc/version")
      #expect(statuses(whole) == [200] && whole.body.contains(expected) && whole.hasSuffix("\r\n0\r\n\r\n"))
      let page = try answer("/proc/version", .notFound)
      #expect(page.body.contains(expected))
      let head = try answer("/proc/version", method: "HEAD")
      #expect(statuses(head) == [200] && head.body.isEmpty)
      // Empty files are files.
      try Peer.withFolder { folder in
        try Peer.write([], to: folder + "/empty")
        let empty = try answer(folder + "/empty")
        #expect(statuses(empty) == [200] && value("content-length", empty) == "0" && !value("etag", empty).isEmpty)
      }
    }
  }

  @Test func `a file that cannot be read is an error of the server`() async throws {
    try await onCoroutine {
      // A read of this process's memory at 0 fails.
      try serving { _, response in
        try response.sendFile("/proc/self/mem")
      } _: { server in
        let answer = try askStatuses(server.address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        #expect(answer == [500] && server.errors.current.count == 1)
      }
    }
  }

  @Test func `a file that cannot be opened for want of a descriptor is an error of the server`() async {
    await #expect(processExitsWith: .success) {
      try await onCoroutine {
        try serving { _, response in
          try response.sendFile("/etc/passwd")
        } _: { server in
          let client = try Connection.connect(to: server.address)
          var answers = ""
          // The first answer has set up what needs descriptors of its own.
          for (number, room) in [rlim_t.max, 0].enumerated() {
            var limit = rlimit()
            getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
            limit.rlim_cur = min(room, limit.rlim_max)
            precondition(setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0)
            try client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            // An answer comes in pieces: the rest of the first one before the second.
            while statuses(answers).count == number {
              let piece = try client.read(upTo: 65_536)
              if piece.isEmpty { break }
              answers += String(decoding: piece, as: UTF8.self)
            }
          }
          #expect(statuses(answers) == [200, 500])
          let told = server.errors.current
          #expect(told.count == 1 && told[0].contains("RLIMIT_NOFILE"), "\(told)")
        }
      }
    }
  }

  @Test func `a path that leads nowhere is no error of the server`() async throws {
    try await onCoroutine {
      try Peer.withFolder { folder in
        #expect(symlink("loop", "\(folder)/loop") == 0)
        let listener = try Listener.bind(.unix("\(folder)/socket"))
        for path in ["\(folder)/loop", "\(folder)/socket", "/etc/passwd/x", String(repeating: "x", count: 5_000)] {
          let found = statuses(try answer(path))
          #expect(found == [404], "\(path)")
        }
        listener.close()
      }
    }
  }

  @Test(arguments: [false, true])
  func `onError is told of a file that gets shorter while it is sent`(isSecure: Bool) async throws {
    try await onCoroutine {
      try Peer.withFolder { folder in
        let path = "\(folder)/file"
        try Peer.write([UInt8](repeating: 1, count: 32 << 20), to: path)
        let files = try Certificates.shared()
        var (options, ofClient) = (HTTPServer.Options(), HTTPClient.Options())
        if isSecure {
          options.tls = try TLS.Server(certificateChain: files.path("server.pem"), privateKey: files.path("server.key"))
          ofClient.tls.trustedRoots = files.path("ca.pem")
        }
        try serving(options) { _, response in
          try response.sendFile(path)
        } _: { server in
          let url = "\(isSecure ? "https" : "http")://localhost:\(server.port)/"
          let response = try HTTPClient(ofClient).get(url)
          #expect(truncate(path, 1_000) == 0)
          #expect(throws: (any Error).self) { try response.collect(upTo: .max) }
          #expect(server.errors.current.count == 1)
        }
      }
    }
  }

  @Test func `a path with a zero byte names no file`() async throws {
    try await onCoroutine {
      try withTime(0) { path in
        for name in [path + "\0", path + "\0.png", "\0", path + ".png\0"] {
          let found = statuses(try answer(name))
          #expect(found == [404], "\(name)")
        }
      }
    }
  }

  @Test(arguments: [HTTPResponse.Status.noContent, .resetContent, .notModified])
  func `a status without a body sends none of a file`(_ status: HTTPResponse.Status) async throws {
    try await onCoroutine {
      try withTime(0) { path in
        let answer = try answer(path, status)
        #expect(statuses(answer) == [status.code] && answer.body.isEmpty)
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
