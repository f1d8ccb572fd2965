import Coroutine
import Dispatch
import Subprocess
import Testing

/// Children that the package swift-subprocess starts.
///
/// It starts them on a thread of its own, which inherits the mask of the thread where the package is first used.
@Suite("A child of swift-subprocess", .timeLimit(.minutes(10)))
struct SubprocessTests {
  enum StartPlace: CaseIterable {
    case worker, queue, poolExecutor
  }

  /// How a child ends that sends itself SIGTERM, and goes on only if that is blocked.
  private static func end() async throws -> TerminationStatus {
    try await run(.path("/bin/sh"), arguments: ["-c", "kill -TERM $$; exit 3"], output: .discarded).terminationStatus
  }

  @Test(arguments: StartPlace.allCases)
  func `is ended by SIGTERM`(_ place: StartPlace) async throws {
    let end =
      switch place {
      case .worker: try await co_launch { try co_await { try await Self.end() } }.value
      case .queue: try await co_launch(on: DispatchQueue(label: "q")) { try co_await { try await Self.end() } }.value
      case .poolExecutor: try await Task(executorPreference: WorkerPoolExecutor.shared) { try await Self.end() }.value
      }
    #expect(end == .signaled(15))
  }
}
