#if Postgres
import Coroutine
import CoroutineNet
import CoroutinePostgres
import Foundation
import Testing

/// What may block in libpq blocks no worker.
///
/// Coroutines of this test are named, since other tests run beside it.
@Suite(.timeLimit(.minutes(10)))
struct StallTests {
  private static let name = "watched for stalls"
  /// The calls in which a busy machine may keep a thread, for a lock or for memory; libpq blocks in others.
  private static let harmless: Set = ["futex", "mmap", "munmap", "mprotect", "madvise"]

  @Test(.enabled(if: openssl != nil, "openssl is not installed"))
  func `no worker is blocked for 200 ms while cancellations hang, a server is silent, and TLS connects`() async throws {
    let stalls = ThreadMutex<[String]>([])
    CoroutineRuntime.onStall(after: .milliseconds(200)) { stall in
      guard stall.coroutine?.contains(Self.name) == true else { return }
      guard let call = stall.activity.systemCall, !Self.harmless.contains(call) else { return }
      stalls.withLock { $0.append("\(stall)") }
    }
    defer { CoroutineRuntime.onStall(nil) }
    let hanging = try Cluster(settings: ["max_connections=120"])
    let secure = try Cluster()
    let silent = try await co_launch { try Listener.bind(.loopback(port: 0)) }.value
    try await co_launch {
      let address = try secure.addSecureGuest()
      try co_scope { scope in
        let cancelled = scope.launch { try cancelMany(on: hanging) }
        var others: [Job<Void>] = []
        for mode in ["disable", "require"] {
          others.append(scope.launch(name: Self.name) { try connect(to: silent, mode) })
        }
        for _ in 0..<8 {
          others.append(
            scope.launch(name: Self.name) {
              let db = try PostgresPool(address)
              #expect(try db.first("select ssl from pg_stat_ssl where pid = pg_backend_pid()", as: Bool.self) == true)
              try db.close()
            }
          )
        }
        for other in others { try other.join() }
        try cancelled.join()
      }
    }.value
    #expect(stalls.withLock { $0 }.isEmpty)
    // The watchdog would have seen it: it sees one that blocks a worker in a system call. Each is reported once, and
    // that may tell of a lock or of a page of memory: then there is another.
    let limit = ContinuousClock.now + .seconds(300)
    while stalls.withLock({ $0.isEmpty }), ContinuousClock.now < limit {
      try await co_launch(name: Self.name) {
        for _ in 0..<300 where stalls.withLock({ $0.isEmpty }) { _ = poll(nil, 0, 10) }
      }.value
    }
    #expect(!stalls.withLock { $0 }.isEmpty)
  }

  /// Cancels 100 statements of a server whose main process stands still, so that no cancellation is answered.
  private func cancelMany(on cluster: Cluster) throws {
    var options = PostgresPool.Options()
    options.connections = 0...100
    options.cancelTimeout = .milliseconds(500)
    // One without a connection would be waited for below.
    options.acquireTimeout = .seconds(600)
    let db = try PostgresPool(cluster.address, options: options)
    try co_scope { scope in
      var jobs: [Job<Void>] = []
      for _ in 0..<100 {
        jobs.append(
          scope.launch(name: Self.name) { #expect(throws: (any Error).self) { try db.run("select pg_sleep(600)") } }
        )
      }
      while db.statistics.inUse < 100 || db.statistics.connecting > 0 { try co_delay(.milliseconds(5)) }
      kill(cluster.postmaster, SIGSTOP)
      defer { kill(cluster.postmaster, SIGCONT) }
      for job in jobs { job.cancel() }
      // Threads that hang in a cancellation are not those of `co_blocking`.
      #expect(try co_blocking { 7 } == 7)
      for job in jobs { try? job.join() }
    }
    // On a slow machine, some were cancelled before their statement was sent, and had nothing to cancel.
    #expect(db.statistics.inUse == 0 && (1...100).contains(db.statistics.cancelled))
    try db.close(drain: .zero)
  }

  private func connect(to silent: Listener, _ mode: String) throws {
    var options = PostgresPool.Options()
    options.acquireTimeout = .milliseconds(800)
    let db = try PostgresPool("host=127.0.0.1 port=\(silent.address.port ?? 0) sslmode=\(mode)", options: options)
    #expect(kind { try db.run("select 1") } == .cannotConnect)
  }
}
#endif
