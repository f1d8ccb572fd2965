#if HTTP
import Coroutine
import CoroutineNet
import CoroutineTesting
import Dispatch
import Foundation
import Glibc
import Testing

@testable import CoroutineHTTP

/// One after the other, because the recorder is one for the process.
@Suite("Diagnostics over HTTP", .timeLimit(.minutes(10)), .serialized)
struct DiagnosticsTests {
  /// Serves on a port of the system's while `body` runs.
  private func serving(_ body: @escaping @Sendable (DiagnosticsServer) throws -> Void) async throws {
    let server = try CoroutineRuntime.serveDiagnostics(at: .loopback(port: 0))
    defer { server.stop() }
    try await onCoroutine { try body(server) }
  }

  private static func get(_ path: String, _ server: DiagnosticsServer, method: String = "GET") throws -> String {
    let request = "\(method) \(path) HTTP/1.1\r\nHost: 127.0.0.1:1\r\nConnection: close\r\n\r\n"
    // A trace of other tests that run meanwhile is large, and a debug build slow.
    return try ask(server.address, request, within: .seconds(120))
  }

  @Test func `every link of the page answers`() async throws {
    try await serving { server in
      let page = try Self.get("/", server)
      #expect(page.hasPrefix("HTTP/1.1 200 OK\r\n") && page.contains("content-type: text/html; charset=utf-8\r\n"))
      let links = page.components(of: "href=\"").dropFirst().compactMap { $0.split(separator: "\"").first }
      #expect(Set(DiagnosticsPage.links.map(\.path)).isSubset(of: links.map(String.init)))
      // Coroutines of other tests end meanwhile.
      for link in links where !link.hasPrefix("/coroutine?") {
        #expect(try Self.get(String(link), server).hasPrefix("HTTP/1.1 200 OK\r\n"), "\(link)")
      }
    }
  }

  /// In a process of its own: only the first 64 places of a process are told apart, and those of most are shown.
  @Test func `the page shows the deadlines that have passed, whatever their time`() async {
    await #expect(processExitsWith: .success) { try await Self.showsPassedDeadlines() }
  }

  /// Outside of the macro, in which all lines have one number.
  private static func showsPassedDeadlines() async throws {
    try await DiagnosticsTests().serving { server in
      for limit in [Duration.seconds(Int64.min), .seconds(-1), .zero, .nanoseconds(1)] {
        for _ in 0..<5_000 { try? co_timeout(limit) { try co_delay(.seconds(60)) } }
        let site = "DiagnosticsTests.swift:\(#line - 1)"
        let page = try Self.get("/", server)
        #expect(page.contains("\(site), the last of 0 ms"), "\(limit)")
      }
    }
  }

  @Test func `a number of a coroutine is a link, and that of a closure or a character is none`() {
    let text = DiagnosticsPage.linked("#17 waits for #1, in closure #2 of f, &#39;")
    #expect(
      text == "<a href=\"/coroutine?id=17\">#17</a> waits for <a href=\"/coroutine?id=1\">#1</a>, "
        + "in closure #2 of f, &#39;"
    )
  }

  @Test func `the answers name a coroutine that waits, and escape its name`() async throws {
    try await serving { server in
      let channel = Channel<Int>()
      let waiting = co_launch(name: "<b>patient</b>") { _ = try channel.receive() }
      defer { waiting.cancel() }
      // Another worker may have taken it, and be stopped before it runs.
      while !CoroutineRuntime.snapshot().coroutines.contains(where: { $0.id == waiting.id && $0.state == .waiting }) {
        try co_yield()
      }
      let escaped = "&lt;b&gt;patient&lt;/b&gt;"
      #expect(try Self.get("/dump", server).contains("<b>patient</b>"))
      #expect(try Self.get("/stacks", server).contains("receive"))
      #expect(try Self.get("/snapshot.json", server).contains("\"name\":\"<b>patient"))
      #expect(try Self.get("/metrics", server).contains("\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8"))
      #expect(try Self.get("/profile?kind=live", server).contains("launch_site"))
      let page = try Self.get("/", server)
      #expect(!page.contains("<b>patient"))
      #expect(page.contains("<pre>") && DiagnosticsPage.escaped("<b>patient</b>") == escaped)
    }
  }

  @Test func `reports name a connection by its peer and the request that it serves, without the query`() async throws {
    try await onCoroutine {
      let gate = Promise<Void>()
      let arrived = Channel<Void>(.unbounded)
      try CoroutineHTTPTests.serving { request, response in
        try arrived.send(())
        try co_await(gate)
        if request.path == "/%1b" { co_current.name = "a name of the handler" }
        try response.send(String(request.path.count))
      } _: { server in
        func names() -> Set<String> { Set(CoroutineRuntime.snapshot().coroutines.compactMap(\.name)) }
        let long = "/" + String(repeating: "l", count: 300)
        let targets = [
          ("/orders/17?secret=1", "GET /orders/17"), ("http://a.example/b?secret=1", "GET http://a.example/b"),
          (long, "GET \(long)"), ("/%1b", "GET /%1b"),
        ]
        var clients: [(Connection, peer: String, shown: String)] = []
        for (target, shown) in targets {
          let client = try Connection.connect(to: server.address)
          try client.send("GET \(target) HTTP/1.1\r\nHost: a\r\n\r\n")
          try arrived.receive()
          clients.append((client, "connection \(client.localAddress)", shown))
        }
        let during = names()
        for client in clients {
          #expect(during.contains(String("\(client.peer) \(client.shown)".prefix(120))), "\(during)")
        }
        #expect(!during.contains { $0.contains("secret") })
        gate.fulfill(())
        for (client, peer, _) in clients {
          #expect(try client.read(upTo: 1_000).isEmpty == false)
          // The name of the request goes after its answer has been sent.
          try co_timeout(.seconds(60)) { while !names().contains(peer) { try co_yield() } }
          // Also after a handler that has set another one.
          try client.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
          try arrived.receive()
          #expect(try client.read(upTo: 1_000).isEmpty == false)
          try co_timeout(.seconds(60)) { while !names().contains(peer) { try co_yield() } }
          client.close()
        }
      }
    }
  }

  @Test(.enabled(if: !isSanitized))
  func `the coroutines of the library, and of the answer itself, come last, in one line each`() async throws {
    try await serving { server in
      let gate = Promise<Void>()
      let own = co_launch(name: "of the program") { try co_await(gate) }
      try CoroutineHTTPTests.serving { _, response in
        try co_await(gate)
        try response.send("")
      } _: { other in
        // One connection is idle, and one is in a handler of the program.
        let idle = try Connection.connect(to: other.address)
        let busy = try Connection.connect(to: other.address)
        try busy.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        let peers = (idle.localAddress, busy.localAddress)
        var (program, library) = ("", "")
        func isThere() -> Bool { program.contains("of the program") && program.contains("\(peers.1) GET /") }
        try co_timeout(.seconds(60)) {
          while !isThere() {
            let parts = try Self.get("/stacks", server).body.components(of: "\nof the library:\n")
            (program, library) = (parts.first ?? "", parts.last ?? "")
          }
        }
        #expect(library.contains(#/ waiting, .*, launched at Coroutine(Net|HTTP)\//#), "\(library)")
        #expect(!program.contains("GET /stacks") && !program.contains("\(peers.0)\""), "\(program)")
        gate.fulfill()
        _ = try busy.read(upTo: 1_000)
        idle.close()
        busy.close()
      }
      try own.join()
    }
  }

  @Test func `a circle of locks is on the page, and on a page of its own`() async throws {
    try await serving { server in
      let locks = (FairMutex(), FairMutex())
      let (first, second) = (Promise<Void>(), Promise<Void>())
      let one = co_launch(name: "one") {
        try locks.0.withLock {
          first.fulfill()
          try co_await(second)
          try locks.1.withLock {}
        }
      }
      let two = co_launch(name: "two") {
        try locks.1.withLock {
          second.fulfill()
          try co_await(first)
          try locks.0.withLock {}
        }
      }
      // Other tests make such circles as well.
      while !CoroutineRuntime.deadlocks().contains(where: { $0.contains { $0.id == one.id } }) { try co_yield() }
      for path in ["/", "/deadlocks"] {
        let text = try Self.get(path, server)
        #expect(text.contains("which waits for") && text.contains("one") && text.contains("two"), "\(path): \(text)")
      }
      one.cancel()
      two.cancel()
      _ = (try? one.join(), try? two.join())
    }
  }

  @Test func `the page has boxes for what is used up, rates, and facts of the process`() async {
    await #expect(processExitsWith: .success) {
      CoroutineRuntime.unhandledErrorHandler = { _ in }
      try await DiagnosticsTests().serving { server in
        CoroutineRuntime.blockingThreadLimit = 1
        let isOver = DispatchSemaphore(value: 0)
        let bodies = (0..<3).map { _ in co_launch(name: "upload") { try co_blocking { isOver.wait() } } }
        while CoroutineRuntime.metrics.blockingWaiting < 2 { try co_yield() }
        let first = try Self.get("/", server)
        #expect(first.contains("<p>Read once; the next page, in 5 s, has rates.</p>"))
        #expect(first.contains("<li>2 bodies of co_blocking wait for a thread: all 1 are taken</li>"))
        #expect(!first.contains("failed</li>"))
        for row in ["started", "processor time", "memory", "at most", "threads", "descriptors"] {
          #expect(first.contains("<th>\(row)</th><td>"), "\(row)")
        }
        let failing = co_launch { throw CoroutineError.notInCoroutine }
        while CoroutineRuntime.metrics.failed < 1 { try co_yield() }
        let second = try Self.get("/", server)
        #expect(second.contains(#/<p>Rates are those of the last \d+\.\d s\. /#))
        #expect(second.contains("<li>1 coroutine has failed</li>"))
        #expect(second.contains(#/<th>failed<\/th><td>1 <small>\+[\d.]+\/s<\/small>/#))
        for _ in bodies { isOver.signal() }
        for body in bodies { try body.join() }
        _ = try? failing.join()
      }
    }
  }

  @Test func `what has ended has a line, and so has a queue that holds something`() async throws {
    try await serving { server in
      func brief() throws -> Job<Void> {
        let job = co_launch(name: "<brief>") {}
        try job.join()
        return job
      }
      let lines = Channel<Int>(8).named("<lines>")
      try lines.send(1)
      let line = #/#\d+ "<brief>" ended \d+ m?s ago, launched at CoroutineHTTPTests/#
      // Again, because tests beside this one may end more than are kept before the page is made.
      repeat { _ = try brief() } while try !Self.get("/ended", server).contains(line)
      while try !Self.get("/coroutine?id=\(brief().id)", server).contains("\"<brief>\" ended ") {}
      // Again, because a few queues are shown, and tests beside this one may have fuller or older ones.
      while try !Self.get("/queues", server).contains("channel \"<lines>\": 1 of 8 value") {}
      let sample = "coroutine_queue_values{kind=\"channel\",name=\"<lines>\""
      while try !Self.get("/metrics", server).contains(sample) {}
      #expect(try !Self.get("/", server).contains("<lines>"))
      withExtendedLifetime(lines) {}
    }
  }

  @Test func `it only reads, and HEAD has no body`() async throws {
    try await serving { server in
      for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        let answer = try Self.get("/metrics", server, method: method)
        #expect(statuses(answer) == [405] && answer.lowercased().contains("\r\nallow: get, head\r\n"), "\(method)")
      }
      for link in DiagnosticsPage.links {
        let answer = try Self.get(link.path, server, method: "HEAD")
        #expect(statuses(answer) == [200] && answer.body.isEmpty, "\(link.path)")
      }
      for path in ["/none", "/profile?kind=none", "/trace?seconds=61", "/trace?seconds=-1", "/trace?seconds=x"] {
        #expect(try [400, 404].contains(statuses(Self.get(path, server)).first), "\(path)")
      }
    }
  }

  /// In a process of its own: there is one profile before the next.
  @Test(.enabled(if: !isSanitized)) func `HEAD of a profile is not what the next one of growth is compared with`() async
  {
    await #expect(processExitsWith: .success) { try await Self.asksForGrowth() }
  }

  /// Outside of the macro, in which all lines have one number.
  private static func asksForGrowth() async throws {
    try await DiagnosticsTests().serving { server in
      _ = try Self.get("/profile?kind=growth", server)
      let gate = Promise<Void>()
      let jobs = (0..<5).map { _ in co_launch { try co_await(gate) } }
      let site = "DiagnosticsTests.swift:\(#line - 1)"
      let ids = Set(jobs.map(\.id))
      func waiting() -> Int {
        CoroutineRuntime.snapshot().coroutines.count { ids.contains($0.id) && $0.state == .waiting }
      }
      while waiting() < 5 { try co_yield() }
      for kind in ["live", "growth"] {
        #expect(try Self.get("/profile?kind=\(kind)", server, method: "HEAD").body.isEmpty)
      }
      #expect(try Self.get("/profile?kind=growth", server).contains(site))
      #expect(try !Self.get("/profile?kind=growth", server).contains(site))
      gate.fulfill()
      for job in jobs { try job.join() }
    }
  }

  @Test func `a trace records for its time, and leaves a recorder as it was`() async throws {
    try await serving { server in
      let isOver = Promise<Void>()
      let busy = co_launch(name: "busy") { while !isOver.isSettled { try co_delay(.milliseconds(1)) } }
      let traces = (0..<2).map { _ in co_launch { try Self.get("/trace?seconds=1", server) } }
      for trace in traces {
        let answer = try trace.join()
        #expect(answer.hasPrefix("HTTP/1.1 200 OK\r\n") && answer.utf8.count > 1_000)
      }
      #expect(!CoroutineRuntime.isRecording)
      isOver.fulfill()
      try busy.join()
      CoroutineRuntime.startRecording()
      let site = "DiagnosticsTests.swift:\(#line + 2)"
      // Again, because tests beside this one may overwrite its events.
      repeat { try co_launch {}.join() } while try !Self.get("/trace?seconds=0", server).contains(site)
      // What has ended before its time is no part of a trace. Again, because an end may be noted after the join.
      while try Self.get("/trace?seconds=1", server).contains(site) {}
      #expect(CoroutineRuntime.isRecording)
      CoroutineRuntime.stopRecording()
    }
  }

  // MARK: Who may read

  @Test func `addresses that other machines can reach are refused, unless they are asked for`() async throws {
    let reachable: [SocketAddress] = try [
      .any(port: 0), .ipv4("0.0.0.0", port: 0), .ipv4("192.0.2.1", port: 0), .ipv6("::2", port: 0),
    ]
    for address in reachable {
      let error = #expect(throws: NetError.self) { try CoroutineRuntime.serveDiagnostics(at: address) }
      #expect(error?.code == EACCES && error?.description.contains("allowsOtherMachines") == true)
    }
    let open = try CoroutineRuntime.serveDiagnostics(at: .any(port: 0), allowsOtherMachines: true)
    defer { open.stop() }
    try await onCoroutine {
      let answer = try ask(
        .loopback(port: open.address.port ?? 0),
        "GET /metrics HTTP/1.1\r\nHost: any.example\r\nConnection: close\r\n\r\n"
      )
      #expect(statuses(answer) == [200])
    }
    let own: [SocketAddress] = try [
      .ipv6("::1", port: 0), .ipv4("127.9.9.9", port: 0), .ipv6("::ffff:127.0.0.1", port: 0),
    ]
    for address in own {
      // A machine without IPv6 has only one of them.
      guard let server = try? CoroutineRuntime.serveDiagnostics(at: address) else { continue }
      #expect(server.address.isOfThisMachine)
      server.stop()
    }
  }

  @Test func `a name that only leads to this machine is refused`() async throws {
    try await serving { server in
      for (host, status) in [
        ("127.0.0.1", 200), ("localhost:8080", 200), ("LOCALHOST", 200), ("[::1]:80", 200), ("10.0.0.1", 200),
        ("evil.example", 403), ("localhost.evil.example", 403), ("127.0.0.1.evil.example:80", 403),
      ] {
        let answer = try ask(server.address, "GET /metrics HTTP/1.1\r\nHost: \(host)\r\nConnection: close\r\n\r\n")
        #expect(statuses(answer) == [status], "\(host)")
      }
    }
  }

  @Test(.enabled(if: Peer.has("curl"), "curl is missing; scripts/setup http installs it"))
  func `curl reads a Unix socket, until the server is stopped`() async throws {
    let path = "/tmp/coroutine-diagnostics-\(getpid())-\(UInt64.random(in: 0 ... .max))"
    let server = try CoroutineRuntime.serveDiagnostics(at: .unix(path))
    try await onCoroutine {
      let arguments = ["-s", "-f", "-m", "120", "--unix-socket", path, "http://program/metrics"]
      let end = try Peer.run("curl", arguments)
      #expect(end.status == 0 && String(decoding: end.output, as: UTF8.self).contains("coroutine"))
      server.stop()
      server.stop()
      while access(path, F_OK) == 0 { try co_yield() }
      #expect(try Peer.run("curl", arguments).status != 0)
    }
  }

  // MARK: While the program hangs

  @Test(.enabled(if: Peer.has("curl"), "curl is missing; scripts/setup http installs it"))
  func `it answers while all workers and queues are blocked`() async throws {
    await #expect(processExitsWith: .success) {
      let server = try CoroutineRuntime.serveDiagnostics(at: .loopback(port: 0))
      let (began, never) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
      @Sendable func block() {
        began.signal()
        never.wait()
      }
      // More than there are workers and spare workers.
      for number in 0..<200 { co_launch(name: "stuck \(number)") { block() } }
      for number in 0..<8 { co_launch(on: DispatchQueue(label: "queue \(number)")) { block() } }
      for _ in 0..<300 { DispatchQueue.global().async { block() } }
      // Until nothing more begins: all of the queues' coroutines have, and most others never do.
      while began.wait(timeout: .now() + .seconds(1)) == .success {}
      while CoroutineRuntime.metrics.running <= 60 { sched_yield() }
      let urls = DiagnosticsPage.links.map { "http://127.0.0.1:\(server.address.port ?? 0)\($0.path)" }
      for url in urls {
        let end = try Peer.runHere("curl", ["-s", "-f", "-m", "200", "--compressed", url])
        #expect(end.status == 0 && !end.output.isEmpty, "\(url)")
      }
      let dump = try Peer.runHere("curl", ["-s", "-m", "200", urls[1]]).output
      let text = String(decoding: dump, as: UTF8.self)
      #expect(text.contains("stuck 199"), "\(text)")
      let metrics = CoroutineRuntime.metrics
      #expect(metrics.ready > 50 && metrics.running > 60, "\(metrics)")
    }
  }

  @Test(.enabled(if: !isSanitized), arguments: Shortage.allCases)
  func `it answers while the process gets no further descriptor, thread or memory`(of shortage: Shortage) async {
    await #expect(processExitsWith: .success) { [shortage] in
      alarm(300)
      let server = try CoroutineRuntime.serveDiagnostics(at: .loopback(port: 0))
      co_launch(name: "has a stack") { try co_delay(.seconds(1_000)) }
      while CoroutineRuntime.metrics.waiting.isEmpty { sched_yield() }
      // The clients of this process have their descriptors already.
      let paths = ["/stacks", "/", "/metrics", "/dump"]
      let clients = paths.map { _ in socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0) }
      shortage.begin()
      for (client, path) in zip(clients, paths) {
        let answer = Self.answer(of: server.address.port ?? 0, path, by: client)
        let isWhole = answer.hasPrefix("HTTP/1.1 200 OK\r\n") && answer.contains("has a stack") || path == "/metrics"
        // There may be no room for the stack of a handler.
        #expect(isWhole || shortage == .memory && answer.hasPrefix("HTTP/1.1 500 "), "\(answer)")
      }
      shortage.end()
    }
  }

  /// What a process has no more of.
  enum Shortage: String, CaseIterable, Codable {
    case descriptors, threads, memory

    func begin() {
      switch self {
      case .descriptors:
        Self.limit(RLIMIT_NOFILE, to: 200)
        while open("/dev/null", O_RDONLY) >= 0 {}
        #expect(errno == EMFILE)
      case .threads:
        Self.limit(__RLIMIT_NPROC, to: 0)
        // The kernel lets the administrator start threads whatever the limit is.
        if geteuid() == 0 { setuid(65_534) }
      case .memory:
        // Mappings of tables are refused. Unoptimised code of Swift needs some memory for its loops.
        let pages = (try? String(contentsOfFile: "/proc/self/statm", encoding: .utf8))?.prefix { $0 != " " }
        Self.limit(RLIMIT_AS, to: (pages.flatMap { rlim_t($0) } ?? 0) * rlim_t(getpagesize()) + (8 << 20))
      }
    }

    /// The test library needs some to end the process.
    func end() { if self == .memory { Self.limit(RLIMIT_AS, to: .max) } }

    private static func limit(_ resource: __rlimit_resource, to most: rlim_t) {
      let resource = __rlimit_resource_t(resource.rawValue)
      var limit = rlimit()
      getrlimit(resource, &limit)
      limit.rlim_cur = min(most, limit.rlim_max)
      precondition(setrlimit(resource, &limit) == 0)
    }
  }

  /// Asks by a socket that is there, without a further descriptor.
  private static func answer(of port: UInt16, _ path: String, by client: Int32) -> String {
    var address = sockaddr_in()
    address.sin_family = sa_family_t(AF_INET)
    address.sin_port = port.bigEndian
    address.sin_addr.s_addr = UInt32(INADDR_LOOPBACK).bigEndian
    let code = withUnsafeBytes(of: &address) {
      connect(client, $0.baseAddress?.assumingMemoryBound(to: sockaddr.self), socklen_t($0.count))
    }
    guard code == 0 else { return "connect: \(errno)" }
    let request = Array("GET \(path) HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".utf8)
    guard write(client, request, request.count) == request.count else { return "write: \(errno)" }
    var (answer, part): ([UInt8], [UInt8]) = ([], Array(repeating: 0, count: 4_096))
    while case let count = read(client, &part, part.count), count > 0 { answer += part[..<count] }
    return String(decoding: answer, as: UTF8.self)
  }
}
#endif
