import Clients
import Coroutine
import CoroutineNet
import Foundation
import NIOConcurrencyHelpers
import NIOCore
import NIOHTTP1
import NIOHTTPServer
import NIOPosix
import NIOSSL
import Testing

@Suite("The server's end, slow clients and TLS", .timeLimit(.minutes(5)))
struct ServerTests {
  @Test func `a server that ends closes idle connections, and lets requests finish`() async throws {
    try await onWorker { group in
      let isServing = Gate()
      let mayAnswer = Gate()
      let server = try Running(group) { request, response in
        if request.path == "/slow" {
          isServing.open()
          try mayAnswer.pass()
        }
        try response.send(request.path)
      }
      let idle = try server.connect()
      try idle.write("GET /idle HTTP/1.1\r\nhost: x\r\n\r\n".utf8)
      _ = try idle.read(until: "/idle")
      let unused = try server.connect()
      let busy = try server.connect()
      try busy.write("GET /slow HTTP/1.1\r\nhost: x\r\n\r\nGET /next HTTP/1.1\r\nhost: x\r\n\r\n".utf8)
      try isServing.pass()
      server.job.cancel()
      let rest = try idle.readAll() + unused.readAll()
      #expect(rest.isEmpty)
      #expect(!server.job.isFinished)
      mayAnswer.open()
      let answer = try busy.readAll()
      #expect(answer.contains("connection: close") && answer.hasSuffix("/slow"), "\(answer)")
      try server.job.join()
      for connection in [idle, unused, busy] { connection.close() }
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `a request that lasts longer than the drain is cancelled, and one that streams is told to end`()
    async throws
  {
    try await onWorker { group in
      let isServing = WaitGroup()
      isServing.add(2)
      let wasCancelled = Locked(false)
      let server = try Running(group, drain: .seconds(2)) { request, response in
        try response.write("begun ")
        isServing.done()
        if request.path == "/stream" {
          try co_await(co_stopping)
          return try response.write("and ended")
        }
        do {
          try Gate().pass()
        } catch {
          wasCancelled.withLockedValue { $0 = co_isCancelled }
          throw error
        }
      }
      let stream = co_launch { try curl("\(server.url)/stream") }
      let stuck = co_launch { try curl("\(server.url)/stuck") }
      try isServing.wait()
      try server.stop()
      let ended = try stream.join()
      #expect(ended.output == "begun and ended" && ended.status == 0)
      let cut = try stuck.join()
      #expect(cut.output == "begun " && cut.status == 18)
      #expect(wasCancelled.current)
    }
  }

  @Test func `requests race with the server's end, and each is answered as a whole or not at all`() async throws {
    try await onWorker(loops: 2) { group in
      var answered = 0
      for round in 0..<30 {
        let server = try Running(group, echo)
        let clients = (0..<4).map { _ in
          co_launch { () -> (whole: Int, broken: [String]) in
            var whole = 0
            var broken: [String] = []
            while let connection = try? server.connect() {
              defer { connection.close() }
              var answer = ""
              do {
                while true {
                  answer = ""
                  try connection.write("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody".utf8)
                  while !answer.hasSuffix("POST / body") {
                    let part = try connection.read(upTo: 1)
                    if part.isEmpty { break }
                    answer += String(decoding: part, as: UTF8.self)
                  }
                  if answer.isEmpty { break }
                  guard answer.hasPrefix("HTTP/1.1 200 "), answer.hasSuffix("POST / body") else {
                    broken.append(answer)
                    break
                  }
                  whole += 1
                }
              } catch let error as NetError {
                // A request that was not answered at all may be reset, but not an answer that has begun.
                if !answer.isEmpty { broken.append("\(answer) \(error)") }
              }
            }
            return (whole, broken)
          }
        }
        for _ in 0..<(round * 20) { try co_yield() }
        try co_delay(.milliseconds(round % 5))
        try server.stop()
        for client in clients {
          let (whole, broken) = try client.join()
          #expect(broken.isEmpty)
          answered += whole
        }
        #expect(server.errors.current.isEmpty)
      }
      #expect(answered > 0)
    }
  }

  @Test func `a slow reader stops the handler that writes to it`() async throws {
    let total = 256 << 20
    try await onWorker(loops: 2) { group in
      let written = Locked(0)
      let hasEnded = Gate()
      let server = try Running(group) { _, response in
        defer { hasEnded.open() }
        let part = ByteBuffer(repeating: 7, count: 64 << 10)
        while written.current < total {
          try response.write(part)
          written.withLockedValue { $0 += part.readableBytes }
        }
      }
      let connection = try server.connect()
      try connection.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n".utf8)
      // The client reads nothing until the handler has stood still for a while.
      var last = -1
      while written.current != last || last < 128 << 10 {
        last = written.current
        try co_delay(.milliseconds(100))
      }
      #expect(last < total / 2, "\(last) bytes")
      // It reads 64 MB, slowly enough, and gives up.
      for _ in 0..<1024 { _ = try connection.read(upTo: 64 << 10) }
      connection.close()
      try hasEnded.pass()
      #expect(written.current < total)
      try server.stop()
      // A client that goes away is no error of the server.
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `a client that takes nothing for too long is closed`() async throws {
    try await onWorker { group in
      var limits = HTTPLimits()
      limits.pause = .milliseconds(50)
      let thrown = Promise<String>()
      let server = try Running(group, limits: limits) { _, response in
        let part = ByteBuffer(repeating: 7, count: 1 << 20)
        do {
          while true { try response.write(part) }
        } catch {
          thrown.fulfill("\(error)")
          throw error
        }
      }
      let connection = try server.connect()
      try connection.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n".utf8)
      let error = try co_await(thrown)
      #expect(error == "clientStalled")
      try server.stop()
      connection.close()
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `TLS is a handler in front of the codec`() async throws {
    try await onWorker(loops: 2) { group in
      let folder = FileManager.default.temporaryDirectory.appending(path: "coroutine-\(UUID())").path
      try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
      defer { try? FileManager.default.removeItem(atPath: folder) }
      let made = try run(
        "openssl",
        [
          "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=example.test", "-addext",
          "subjectAltName=DNS:example.test", "-keyout", "\(folder)/key.pem", "-out", "\(folder)/certificate.pem",
        ]
      )
      #expect(made.status == 0)
      let context = try NIOSSLContext(
        configuration: .makeServerConfiguration(
          certificateChain: NIOSSLCertificate.fromPEMFile("\(folder)/certificate.pem").map { .certificate($0) },
          privateKey: .privateKey(NIOSSLPrivateKey(file: "\(folder)/key.pem", format: .pem))
        )
      )
      let server = try Running(
        group,
        configure: { try $0.pipeline.syncOperations.addHandler(NIOSSLServerHandler(context: context)) },
        echo
      )
      let url = "https://example.test:\(server.port)"
      let to = ["--cacert", "\(folder)/certificate.pem", "--resolve", "example.test:\(server.port):\(server.host)"]
      let big = Data(repeating: 66, count: 1 << 20)
      let secure = try run(
        "curl",
        ["--silent", "--max-time", "120", "--http1.1"] + to + ["--data-binary", "@-", "\(url)/secure"],
        input: big
      )
      #expect(secure.output == "POST /secure " + String(decoding: big, as: UTF8.self))
      let kept = try run(
        "curl",
        ["--silent", "--max-time", "120"] + to + ["\(url)/1", "--next"] + to
          + ["--silent", "--write-out", " %{num_connects}", "\(url)/2"]
      )
      #expect(kept.output == "GET /1 GET /2  0")
      let refused = try run(
        "curl",
        ["--silent", "--max-time", "120", "--data-binary", "@-"] + to + ["\(url)/big"],
        input: Data(repeating: 1, count: 20 << 20)
      )
      #expect(refused.status != 0 || !refused.output.contains("POST"))
      // Without TLS there is no answer, and the next connection is served.
      let plain = try curl("http://\(server.host):\(server.port)/plain")
      #expect(plain.status != 0)
      let again = try run("curl", ["--silent", "--max-time", "120"] + to + ["\(url)/again"])
      #expect(again.output == "GET /again ")
      try server.stop()
    }
  }
}
