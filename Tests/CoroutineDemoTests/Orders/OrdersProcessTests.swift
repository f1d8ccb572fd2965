#if Demo
import ArgumentParser
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

@testable import CoroutineDemo

/// The program as a process, with its server and its workers.
@Suite(.timeLimit(.minutes(10))) struct `CoroutineDemo orders` {
  private let small = ["--orders", "100", "--workers", "3", "--kills", "5"]

  /// A server of the test's own, which the program is told of.
  private func withServer(_ body: (Cluster) async throws -> Void) async throws {
    let cluster = try Cluster(lines: ["listen_addresses=''", "fsync=off"], port: 5_432)
    try await body(cluster)
    cluster.remove()
  }

  @Test func `workers are killed, and effects are orders`() async throws {
    let end = try await DemoProcess.run(["orders"] + small)
    #expect(end.status == 0, "\(end.errors)")
    #expect(end.output.contains(/orders +100  3 workers, 5 kills,/), "\(end.output)")
    #expect(end.output.contains(/\n +mails +100  one for each order\n/), "\(end.output)")
    #expect(end.output.contains(/\n +wrong balances +0\s/), "\(end.output)")
    #expect(end.output.hasSuffix("\nProven: effects = orders.\n"))
    #expect(end.errors.contains("\n100 of 100 orders, 100 mails, "), "\(end.errors)")
    #expect(end.errors.contains(/5 kills, nightly: worker \d, process \d+ \(fence \d+\)\n/), "\(end.errors)")
  }

  @Test func `a given database is used, and its tables are dropped`() async throws {
    try await withServer { cluster in
      let end = try await DemoProcess.run(["orders", "--database", cluster.address] + small)
      #expect(end.status == 0, "\(end.errors)")
      #expect(end.output.hasSuffix("\nProven: effects = orders.\n"))
      #expect(!end.errors.contains("Starting PostgreSQL"))
      let left = try await onCoroutine {
        let shop = Shop(on: try PostgresPool(cluster.address), schema: "none")
        defer { try? shop.db.close() }
        let schemas: SQL = "select count(*) from pg_namespace where nspname like 'demo%'"
        return try shop.db.first(schemas, as: Int.self)
      }
      #expect(left == 0)
    }
  }

  @Test(arguments: [(SIGINT, 130), (SIGTERM, 143)] as [(Int32, Int32)])
  func `a signal ends it, and leaves no server and no worker`(signal: Int32, code: Int32) async throws {
    let demo = try DemoProcess(["orders", "--orders", "5000", "--kills", "0"])
    try await demo.says("nightly: worker ")
    let (folder, workers) = try leftovers(of: demo)
    demo.send(signal)
    let end = await demo.end()
    #expect(end.status == code)
    #expect(end.errors.hasSuffix("CoroutineDemo: interrupted before the end; nothing was proven.\n"), "\(end.errors)")
    #expect(end.output.isEmpty)
    #expect(!FileManager.default.fileExists(atPath: folder))
    for worker in workers { #expect(kill(worker, 0) == -1 && errno == ESRCH) }
  }

  @Test func `it is killed, and neither its server nor its workers outlive it`() async throws {
    let demo = try DemoProcess(["orders", "--orders", "5000", "--kills", "0"])
    try await demo.says("nightly: worker ")
    let (folder, workers) = try leftovers(of: demo)
    demo.send(SIGKILL)
    _ = await demo.end()
    try await onCoroutine {
      while FileManager.default.fileExists(atPath: folder) { try co_delay(.milliseconds(10)) }
      // Of a process that nobody waits for, the number may stay.
      for worker in workers {
        while let state = Self.status(worker, "State:"), !state.contains("Z") { try co_delay(.milliseconds(10)) }
      }
    }
  }

  @Test func `a worker that ends by itself ends the orders, and is named`() async throws {
    let demo = try DemoProcess(["orders", "--orders", "5000", "--kills", "0"])
    try await demo.says("nightly: worker ")
    let (folder, workers) = try leftovers(of: demo)
    kill(workers[0], SIGKILL)
    let end = await demo.end()
    #expect(end.status == 70)
    #expect(end.errors.contains(/worker \d has ended with status 9\.\n/), "\(end.errors)")
    #expect(!FileManager.default.fileExists(atPath: folder))
  }

  @Test func `a board is drawn on a terminal, and the cursor comes back`() async throws {
    let terminal = try PseudoTerminal(columns: 70, rows: 24, environment: ["TERM": "xterm-256color"])
    let end = try await DemoProcess.run(["orders"] + small, terminal: terminal)
    #expect(end.status == 0)
    #expect(end.output.contains("  orders   ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  100 of 100\r\n"), "\(end.output)")
    #expect(end.output.contains("  kills    5 of 5\r\n"))
    let hidden = try #require(end.output.range(of: "\u{1B}[?25l"))
    let shown = try #require(end.output.range(of: "\u{1B}[?25h"))
    #expect(hidden.lowerBound < shown.lowerBound)
    #expect(end.output.hasSuffix("Proven: effects = orders.\r\n"))
  }

  @Test func `a database that is not there is named`() async throws {
    let end = try await DemoProcess.run(["orders", "--database", "host=/nowhere dbname=none"])
    #expect(end.status == 69)
    #expect(end.errors.contains("CoroutineDemo: the database: cannotConnect"), "\(end.errors)")
    #expect(end.errors.contains("/nowhere"))
  }

  @Test(arguments: [
    (["--orders", "0"], "--orders is a number from 1 to 1000000, not 0"),
    (["--rate", "0"], "--rate is a number from 1 to 100000, not 0"),
    (["--workers", "17"], "--workers is a number from 1 to 16, not 17"),
    (["--orders", "3", "--kills", "4"], "--kills is a number from 0 to that of the orders, not 4"),
  ])
  func `a bad argument is a usage error that names it`(arguments: [String], sentence: String) async throws {
    let end = try await DemoProcess.run(["orders"] + arguments)
    #expect(end.status == 64)
    #expect(end.errors.contains(sentence), "\(end.errors)")
  }

  /// The folder of the program's server, and the numbers of its workers' processes.
  private func leftovers(of demo: DemoProcess) throws -> (folder: String, workers: [Int32]) {
    let processes = try FileManager.default.contentsOfDirectory(atPath: "/proc").compactMap { Int32($0) }
    let children = processes.filter { Self.status($0, "PPid:") == "\(demo.id)" }
    var folders: [String] = []
    var workers: [Int32] = []
    for child in children {
      let line = (try? String(contentsOfFile: "/proc/\(child)/cmdline", encoding: .utf8)) ?? ""
      let parts = line.split(separator: "\0")
      guard parts.count > 1 else { continue }
      if parts[1] == "orders-worker" { workers.append(child) }
      if let match = line.firstMatch(of: /cd '(\/tmp\/co-pg-[^']+)'/) { folders.append(String(match.1)) }
    }
    #expect(workers.count == 4)
    return (try #require(folders.first), workers)
  }

  private static func status(_ process: Int32, _ field: String) -> String? {
    let text = try? String(contentsOfFile: "/proc/\(process)/status", encoding: .utf8)
    let line = text?.split(separator: "\n").first { $0.hasPrefix(field) }
    return line.map { $0.dropFirst(field.count).trimmingCharacters(in: .whitespaces) }
  }
}

@Suite struct `What Sources/CoroutineDemo/Orders/README.md promises` {
  @Test func `has a row for every exit code, and so has the help`() throws {
    var root = URL(filePath: #filePath)
    for _ in 1...4 { root.deleteLastPathComponent() }
    let page = root.appending(path: "Sources/CoroutineDemo/Orders/README.md")
    let document = try String(contentsOf: page, encoding: .utf8)
    let help = OrdersCommand.helpMessage()
    for code in [0, 40, 64, 69, 70, 71, 74, 124, 130] {
      #expect(document.contains("\n| \(code) |"), "\(code)")
      #expect(help.contains(try Regex("\n +\(code) ")), "\(code)")
    }
  }
}
#endif
