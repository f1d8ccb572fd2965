import Glibc
import Testing

@testable import Coroutine

/// A report that a process of its own writes, with a text of the user's in it.
enum HostileReport: String, Codable {
  case unhandledError
  case main
  case thirdSignal
  case misuse
  case overflow
  case stall

  /// What the process writes to standard error.
  func text(_ length: Hostile.Length) async throws -> String {
    let result = await #expect(processExitsWith: expected, observing: [\.standardErrorContent]) { [self, length] in
      try await self.run(length)
    }
    return String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
  }

  private var expected: ExitTest.Condition {
    switch self {
    case .unhandledError, .stall: .success
    case .main: .exitCode(1)
    case .thirdSignal: .signal(SIGTERM)
    case .misuse: .failure
    case .overflow: .overflow
    }
  }

  private func run(_ length: Hostile.Length) async throws {
    alarm(300)
    switch self {
    case .unhandledError:
      let (byDefault, isWritten) = (CoroutineRuntime.unhandledErrorHandler, Flag())
      CoroutineRuntime.unhandledErrorHandler = { unhandled in
        byDefault(unhandled)
        isWritten.raise()
      }
      co_launch(name: length.text) { () throws -> Void in throw length.failure }
      // The worker may report it some time after the end, when it gives up the job.
      while !isWritten.isRaised { await Task.yield() }
    case .main: Self.main { throw length.failure }
    case .thirdSignal:
      Self.main {
        // With pauses, because a storm of signals would keep the thread that writes from a slow machine's processors.
        co_launch(name: length.text) {
          while true {
            kill(getpid(), SIGTERM)
            RealClock.block(for: .milliseconds(1))
          }
        }
        co_shield { while true { try? co_delay(.seconds(100)) } }
      }
    case .misuse: Coroutine.misuse("no host is called \(length.text)")
    case .overflow:
      try await co_launch(name: length.text, stack: .bytes(64 << 10)) { _ = descendForEver(1 << 40) }.value
    case .stall:
      let report = Locked<String?>(nil)
      CoroutineRuntime.onStall(after: .milliseconds(1)) { stall in report.withLock { $0 = "\(stall)" } }
      try await co_launch(name: length.text) { while report.current == nil { sched_yield() } }.value
      writeToStandardError(report.current! + "\n")
    }
  }

  /// `co_main` may not be called in an async function.
  private static func main(_ body: @escaping @Sendable () throws -> Void) -> Never { co_main(body) }
}
