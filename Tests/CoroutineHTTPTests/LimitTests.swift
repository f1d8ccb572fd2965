#if HTTP
import Coroutine
@testable import CoroutineHTTP
import CoroutineNet
import CoroutineTesting
import Glibc
import HTTPTypes
import Testing

@Suite("Limits and the end of the server", .timeLimit(.minutes(10)))
struct LimitTests {
  private static let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"

  /// Time enough for a request of a client on a busy machine.
  private static var quick: HTTPServer.Options {
    var options = HTTPServer.Options()
    options.idle = .seconds(2)
    options.headTime = .seconds(2)
    options.pause = .seconds(2)
    return options
  }

  @Test func `an idle connection is closed without an answer, a slow head gets 408`() async throws {
    try await onCoroutine {
      try serving(Self.quick) { _, response in
        try response.send("ok")
      } _: { server in
        #expect(try ask(server.address, "").isEmpty)
        #expect(try askStatuses(server.address, Self.get) == [200])
        let slow = try ask(server.address, Self.get + "GET / HT")
        #expect(statuses(slow) == [200, 408] && slow.contains("connection: close\r\n"))
      }
    }
  }

  @Test func `a body that pauses gets 408, and a client that takes nothing is cut off`() async throws {
    try await onCoroutine {
      let cut = Promise<String>()
      try serving(Self.quick) { request, response in
        if request.path == "/large" {
          let part = [UInt8](repeating: 65, count: 1 << 20)
          do {
            for _ in 0..<100 { try part.withUnsafeBytes { try response.write($0) } }
          } catch {
            cut.fulfill("\(error)")
            throw error
          }
        }
        try response.send(try request.collect())
      } _: { server in
        let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc"
        #expect(try askStatuses(server.address, post) == [408])
        let chunks = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab"
        #expect(try askStatuses(server.address, chunks) == [408])
        let client = try Connection.connect(to: server.address)
        try client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        let cause = try co_await(cut)
        #expect(cause.contains("STALLED"))
        #expect(try client.rest().utf8.count < 100 << 20)
      }
    }
  }

  @Test func `a body that is too large gets 413, also if it is chunked`() async throws {
    try await onCoroutine {
      var options = HTTPServer.Options()
      options.bodySize = 1_000
      try serving(options) { request, response in
        try response.send(try request.collect(upTo: request.path == "/small" ? 10 : .max))
      } _: { server in
        func post(_ path: String, _ count: Int) -> String {
          "POST \(path) HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: \(count)\r\n\r\n"
            + String(repeating: "a", count: count)
        }
        let actual6 = try askStatuses(server.address, post("/", 1_000))
        #expect(actual6 == [200])
        let actual5 = try askStatuses(server.address, post("/", 1_001))
        #expect(actual5 == [413])
        let actual4 = try askStatuses(server.address, post("/small", 10))
        #expect(actual4 == [200])
        let actual3 = try askStatuses(server.address, post("/small", 11))
        #expect(actual3 == [413])
        let chunk = "1f4\r\n" + String(repeating: "a", count: 500) + "\r\n"
        let chunked = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        let actual2 = try askStatuses(server.address, chunked + chunk + chunk + "0\r\n\r\n")
        #expect(actual2 == [200])
        let actual1 = try askStatuses(server.address, chunked + chunk + chunk + chunk + "0\r\n\r\n")
        #expect(actual1 == [413])
      }
    }
  }

  @Test func `a stop ends idle connections at once, and answers what has arrived`() async throws {
    try await onCoroutine {
      let (began, gate) = (Promise<Void>(), Promise<Void>())
      let server = try Running { request, response in
        if request.path == "/wait" {
          began.fulfill(())
          try co_await(gate)
        }
        try response.send("ok")
      }
      let idle = try Connection.connect(to: server.address)
      try idle.send(Self.get)
      while try !String(decoding: idle.read(upTo: 1_000), as: UTF8.self).hasSuffix("ok") {}
      let new = try Connection.connect(to: server.address)
      let busy = try Connection.connect(to: server.address)
      try busy.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
      try co_await(began)
      server.job.cancel()
      // They end although the server still waits for the handler.
      #expect(try idle.rest().isEmpty)
      #expect(try new.rest().isEmpty)
      gate.fulfill(())
      let answer = try busy.rest()
      #expect(statuses(answer) == [200] && answer.contains("connection: close\r\n"))
      try server.job.join()
    }
  }

  @Test func `a handler that outlasts the drain is cancelled`() async throws {
    try await onCoroutine {
      var options = HTTPServer.Options()
      options.server.drain = .milliseconds(50)
      let (began, ended) = (Promise<Void>(), Promise<Bool>())
      let server = try Running(options) { _, response in
        began.fulfill(())
        do {
          try co_delay(.seconds(1_000))
        } catch {
          ended.fulfill(co_isCancelled)
          throw error
        }
      }
      let client = try Connection.connect(to: server.address)
      try client.send(Self.get)
      try co_await(began)
      try server.stop()
      #expect(try co_await(ended))
    }
  }

  @Test func `a handler is cancelled when its client has gone, and a shield keeps its work`() async throws {
    try await onCoroutine {
      let (began, ended, shielded) = (Promise<Void>(), Promise<String>(), Promise<Bool>())
      try serving { _, response in
        began.fulfill(())
        do {
          try co_delay(.seconds(1_000))
        } catch {
          ended.fulfill("\(error)")
          shielded.fulfill(
            try co_shield {
              try co_delay(.milliseconds(1))
              return true
            }
          )
          throw error
        }
      } _: { server in
        let client = try Connection.connect(to: server.address)
        try client.send(Self.get)
        try co_await(began)
        client.close()
        #expect(try co_await(ended).contains("PEER_HAS_GONE"))
        #expect(try co_await(shielded))
        #expect(server.errors.current.isEmpty)
      }
    }
  }

  private static let numbers = [0, -1, 1, .max, .min]
  private static let times: [Duration] = [
    .zero, .seconds(-1), .nanoseconds(1), .seconds(Int64.max), .seconds(Int64.min),
  ]
  private typealias Both = (server: HTTPServer.Options, client: HTTPClient.Options)

  /// Each option with a number, at each extreme.
  private static var extremes: [(name: String, set: (inout Both) -> Void)] {
    var all: [(name: String, set: (inout Both) -> Void)] = []
    let counts: [(String, WritableKeyPath<Both, Int>)] = [
      ("headSize", \.server.headSize), ("bodySize", \.server.bodySize), ("discardedSize", \.server.discardedSize),
      ("maxConnections", \.server.server.maxConnections), ("backlog", \.server.server.listener.backlog),
      ("connectionsOfHost", \.client.connectionsOfHost), ("redirects", \.client.redirects),
    ]
    let durations: [(String, WritableKeyPath<Both, Duration>)] = [
      ("idle", \.server.idle), ("headTime", \.server.headTime), ("pause", \.server.pause),
      ("drain", \.server.server.drain), ("idle of a client", \.client.idle),
    ]
    for number in numbers {
      for (name, path) in counts { all.append(("\(name) = \(number)", { $0[keyPath: path] = number })) }
      // The least stack is for small bodies: a handler that needs more ends the process with a sentence.
      if number > 1 { all.append(("stack = \(number)", { $0.server.server.stack = .bytes(number) })) }
    }
    for time in times {
      for (name, path) in durations { all.append(("\(name) = \(time)", { $0[keyPath: path] = time })) }
      all.append(("shedding = \(time)", { $0.server.server.shedding = LoadShedding(target: time, interval: time) }))
    }
    return all
  }

  @Test func `no option traps, whatever its number is`() async throws {
    try await onCoroutine {
      let chunks = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n"
      for (name, set) in Self.extremes {
        var options: Both = (.init(), .init())
        set(&options)
        // Without a stack, say, there is no server, and an error says so.
        _ = try? serving(options.server) { request, response in
          if request.path == "/unread" { return try response.send("unread") }
          try response.send(try request.collect(upTo: request.path == "/least" ? .min : .max))
        } _: { server in
          let client = HTTPClient(options.client)
          let url = "http://127.0.0.1:\(server.port)"
          for path in ["/read", "/unread", "/least"] {
            let raw = "POST \(path) HTTP/1.1\r\nHost: a\r\n\(chunks)GET /unread HTTP/1.1\r\nHost: a\r\n\r\n"
            let isAnswered = name.hasSuffix("\(Int.max)") && path != "/least" && !name.hasPrefix("stack")
            let answer = try? ask(server.address, raw, ends: true, within: .seconds(isAnswered ? 120 : 5))
            if isAnswered {
              #expect(statuses(answer ?? "") == [200, 200], "\(name) \(path) \(answer ?? "-")")
            }
            _ = try? co_timeout(.seconds(5)) {
              _ = try client.send(HTTPRequest(method: .post, url: url + path), body: [1, 2, 3]).collect(upTo: .max)
              _ = try client.get(url + path).collect(upTo: .min)
            }
          }
          client.close()
        }
      }
    }
  }

  @Test(.simulated(.random(seeds: 20))) func `a server in a simulated network answers, and closes what is idle`()
    throws
  {
    var options = HTTPServer.Options()
    options.idle = .seconds(60)
    let server = try Running(options) { request, response in
      try co_delay(.seconds(1))
      try response.send("\(request.path)")
    }
    let client = try Connection.connect(to: server.address)
    try client.send("GET /one HTTP/1.1\r\nHost: a\r\n\r\nGET /two HTTP/1.1\r\nHost: a\r\n\r\n")
    let answer = try client.rest()
    #expect(statuses(answer) == [200, 200] && answer.contains("/one") && answer.contains("/two"))
    try server.stop()
  }

  @Test func `a client without a free descriptor closes the connections that it does not use`() async {
    await #expect(processExitsWith: .success) {
      try await onCoroutine {
        try serving { _, response in
          try response.send("ok")
        } _: { first in
          try serving { _, response in
            try response.send("ok")
          } _: { second in
            let client = HTTPClient()
            let one = try client.get("http://127.0.0.1:\(first.port)/").collect(upTo: 10)
            var limit = rlimit()
            getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
            limit.rlim_cur = min(200, limit.rlim_max)
            precondition(setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0)
            while open("/dev/null", O_RDONLY) >= 0 {}
            let other = try client.get("http://127.0.0.1:\(second.port)/").collect(upTo: 10)
            #expect(one.count == 2 && other.count == 2)
          }
        }
      }
    }
  }
}
#endif
