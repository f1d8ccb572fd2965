import CTestSupport
import Foundation
import Glibc
import Testing

@testable import Coroutine

/// Counts the system calls of a process of its own by strace, which scripts/setup installs.
@Suite("Waiting for descriptors: system calls", .timeLimit(.minutes(10)))
struct DescriptorCallsTests {
  // Under ThreadSanitizer the watchdog finds the time for more inspections.
  @Test(.enabled(if: !isThreadSanitized), arguments: ["workers", "queue"])
  func `a wait after EAGAIN costs six system calls, on a worker seven and no wake-up of a thread`(_ where: String)
    async throws
  {
    let rounds = 2_000
    let (calls, seconds) = try await Self.play(rounds, `where`)

    // Each wait adds a duplicate to a poller, and removes it. One of the two coroutines waits in each round; the byte
    // of the other one may have come before it looks, as where strace stops a worker for long, and a spare one helps.
    let waits = calls["epoll_ctl", default: 0] / 2
    #expect(waits >= rounds / 2 && waits < 3 * rounds)
    var (waiting, most) = (["fstat", "newfstatat", "fcntl", "epoll_ctl", "poll", "ppoll", "close"], 6.1)
    // A queue is woken by Dispatch, whose thread waits more often on a busy machine.
    if `where` == "workers" {
      waiting += ["epoll_wait", "epoll_pwait", "epoll_pwait2", "futex"]
      most += 1
    }
    let spent = waiting.reduce(0) { $0 + calls[$1, default: 0] }
    // Beside the waits: the start of the process and of the threads, and the watchdog's inspections, 500 a second of
    // two calls each at most, of a process that strace makes slow.
    #expect(Double(spent) <= most * Double(waits) + 600 + 1_000 * seconds, "\(calls)")
    // The program's own calls: a write and a read for each byte, and a read that got EAGAIN for each wait. An eventfd
    // that wakes a thread would be a write more for each wait; the watchdog of a slow worker makes some.
    #expect(calls["write", default: 0] <= 2 * rounds + rounds / 4, "\(calls)")
  }

  /// A wait of a ForeignDescriptor costs the worker's epoll_wait, and a poll more if nothing is known.
  @Test(arguments: [("foreign", 1.1), ("unread", 2.1)])
  func `a wait for a foreign descriptor that is watched once costs one system call after EAGAIN, otherwise two`(
    _ kind: String,
    _ most: Double
  ) async throws {
    let rounds = 2_000
    let (calls, seconds) = try await Self.play(rounds, kind)
    // A read for each byte, and one that got EAGAIN for each wait.
    let waits = calls["read", default: 0] - 2 * rounds
    #expect(waits >= rounds / 2, "\(calls)")
    let names = ["epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "futex"]
    let spent = names.reduce(0) { $0 + calls[$1, default: 0] }
    #expect(Double(spent) <= most * Double(waits) + 200 + 1_000 * seconds, "\(calls)")
    // For all rounds together.
    #expect(calls["epoll_ctl", default: 0] <= 20, "\(calls)")
    if kind == "foreign" { #expect(calls["poll", default: 0] + calls["ppoll", default: 0] <= 20, "\(calls)") }
  }

  /// Runs CountedWaits under strace; returns its calls by name, and the time in seconds.
  private static func play(_ rounds: Int, _ kind: String) async throws -> ([String: Int], Double) {
    let table = "/tmp/coroutine-calls-\(getpid())-\(kind)"
    defer { unlink(table) }
    let start = ContinuousClock.now
    let status = try await onCoroutine {
      let program = folderOfTests() + "/CountedWaits"
      let child = try #require(spawn("/usr/bin/env", "strace", "-f", "-c", "-o", table, program, "\(rounds)", kind))
      return try co_blocking { cts_end_of(child) }
    }
    try #require(status == 0)
    return (try calls(table), Double(start.duration(to: .now) / .seconds(1)))
  }

  /// The number of calls by name, from a table that `strace -c` has written.
  private static func calls(_ path: String) throws -> [String: Int] {
    var calls: [String: Int] = [:]
    for line in try String(contentsOfFile: path, encoding: .utf8).split(separator: "\n") {
      // % time, seconds, microseconds a call, calls, errors (or nothing), name
      let words = line.split(separator: " ")
      if words.count >= 5, let count = Int(words[3]) { calls[String(words[words.count - 1])] = count }
    }
    return calls
  }
}
