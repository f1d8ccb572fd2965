import CCoroutine
import CTestSupport
import Testing

@testable import Coroutine

private let hasThreadSanitizer = cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue != 0

/// Processes that fork before they have used the runtime, as daemons and servers of several processes do.
///
/// The parts of the program Tests/Forks: the process of a test has used Dispatch and Tasks.
private enum Part: String, CaseIterable, CustomTestStringConvertible {
  case uses, grandchildren, threads, generators, notUsed, used, afterUse, signals, initialiser, dispatch, servers,
    daemon

  var testDescription: String {
    switch self {
    case .uses: "a child launches, waits, blocks, handles signals, and serves the main queue"
    case .grandchildren: "so does a child of a child"
    case .threads: "so does a child that another thread has forked"
    case .generators: "so does a child that a generator's body has forked, and that goes on in it"
    case .notUsed: "start-up, generators, channels, locks, dumps and listeners are no use"
    case .used: "each first use makes later children be refused, and their children"
    case .afterUse: "the use of a child is not its parent's, and is its own children's"
    case .signals: "a child of a process that handles signals gets its own by a thread of its own"
    case .initialiser: "a child that the initialiser of a static let has forked returns from it, and launches"
    case .dispatch: "a child of a process that had used Dispatch has the worker pool, and no queue"
    case .servers: "several children accept from the listener of their parent, whose file stays"
    case .daemon: "a daemon works when the process that has forked it has ended"
    }
  }
}

// ThreadSanitizer ends a child of many threads.
@Suite("A fork before the first use", .enabled(if: !hasThreadSanitizer), .timeLimit(.minutes(10)))
struct FirstUseTests {
  @Test(arguments: Part.allCases)
  private func `leaves the runtime to the child`(_ part: Part) async throws {
    let status = try await onCoroutine {
      let child = try #require(spawn(folderOfTests() + "/Forks", part.rawValue))
      return try co_blocking { cts_end_of(child) }
    }
    #expect(status == 0)
  }
}
