import CCoroutine
import CTestSupport
import Dispatch
import Foundation
import Glibc
import Testing

@testable import Coroutine

/// Where code runs that starts a child.
enum StartPlace: CaseIterable {
  case worker, blockingThread, queue, dispatchBlock

  func run<Output: Sendable>(_ body: @escaping @Sendable () throws -> Output) async throws -> Output {
    switch self {
    case .worker: try await co_launch { try body() }.value
    case .blockingThread: try await co_launch { try co_blocking { try body() } }.value
    case .queue: try await co_launch(on: DispatchQueue(label: "children")) { try body() }.value
    case .dispatchBlock: try await onBlock(of: .global(), body)
    }
  }
}

/// How a test starts a child.
struct Start: CustomTestStringConvertible {
  let kind: cts_start_kind
  let testDescription: String

  // ThreadSanitizer ends a child of many threads.
  static let mayFork = cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue == 0

  static let all =
    (mayFork ? [Start(kind: CTS_FORK, testDescription: "fork")] : []) + [
      Start(kind: CTS_SPAWN, testDescription: "posix_spawn"),
      Start(kind: CTS_SPAWN_BY_NAME, testDescription: "posix_spawnp"),
      Start(kind: CTS_SPAWN_IN_GROUP, testDescription: "posix_spawn with attributes"),
    ]
}

/// Sends itself SIGTERM, and goes on only if that is blocked.
private let endsItself = "kill -TERM $$; exit 3"

@Suite("A child process", .timeLimit(.minutes(10)))
struct ChildrenTests {
  @Test(arguments: StartPlace.allCases, Start.all)
  func `is ended by SIGTERM`(_ place: StartPlace, _ start: Start) async throws {
    let kind = start.kind
    let answers = try await place.run {
      let before = blockedSignals()
      let end = cts_end_of(cts_start(kind, endsItself))
      return (end: end, keepsMask: before == blockedSignals(), isMasked: before.contains(SIGTERM))
    }
    #expect(answers.end == -SIGTERM)
    // The parent's thread goes on as it was.
    #expect(answers.isMasked && answers.keepsMask)
  }

  // Foundation's Process leaves weak references behind.
  @Test(.enabled(if: !countsLeaks), arguments: StartPlace.allCases)
  func `is ended by Foundation's terminate()`(_ place: StartPlace) async throws {
    let pipe = Pipe()
    let process = try await place.run {
      let process = Process()
      process.executableURL = URL(fileURLWithPath: "/bin/sh")
      process.arguments = ["-c", "read line; exit 3"]
      process.standardInput = pipe
      try process.run()
      return process
    }
    process.terminate()
    // Only a child that blocks SIGTERM reads it.
    try pipe.fileHandleForWriting.close()
    try await onBlock(of: .global()) { process.waitUntilExit() }
    #expect(process.terminationReason == .uncaughtSignal)
    #expect(process.terminationStatus == SIGTERM)
  }

  @Test(.enabled(if: Start.mayFork))
  func `of co_main's coroutine is ended by SIGTERM`() async {
    await #expect(processExitsWith: .exitCode(7)) {
      func main() {
        co_main {
          let ends = [CTS_FORK, CTS_SPAWN].map { cts_end_of(cts_start($0, endsItself)) }
          if ends == [-SIGTERM, -SIGTERM] { exit(7) }
        }
      }
      main()
    }
  }

  @Test func `has the mask that its starter asks for`() async throws {
    let end = try await StartPlace.worker.run { cts_end_of(cts_start(CTS_SPAWN_WITH_MASK, endsItself)) }
    #expect(end == 3)
  }

  @Test(.enabled(if: Start.mayFork), arguments: StartPlace.allCases)
  func `lets no signal through before its own handlers if its starter blocks all over the fork`(
    _ place: StartPlace
  ) async throws {
    let end = try await place.run { cts_end_of(cts_start(CTS_FORK_WITH_ALL_BLOCKED, endsItself)) }
    #expect(end == 3)
  }

  @Test(arguments: Start.all)
  func `inherits the mask of a thread that has one of its own`(_ start: Start) async throws {
    let kind = start.kind
    let end = try await onBlock(of: .global()) {
      var mine = sigset_t()
      var former = sigset_t()
      sigemptyset(&mine)
      sigaddset(&mine, SIGTERM)
      pthread_sigmask(SIG_SETMASK, &mine, &former)
      defer { pthread_sigmask(SIG_SETMASK, &former, nil) }
      return cts_end_of(cts_start(kind, endsItself))
    }
    #expect(end == 3)
  }
}
