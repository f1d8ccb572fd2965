import Glibc
import Testing

@testable import Coroutine

/// What becomes of a program whose main coroutine is run by `co_main`.
@Suite(.timeLimit(.minutes(5)))
struct MainCoroutineTests {
  /// Not async, as a program's main function.
  private static func main(within duration: Duration = .seconds(50), _ body: @escaping @Sendable () throws -> Void) {
    co_main(within: duration, body)
  }

  @Test func `a body that returns ends the process with 0`() async {
    await #expect(processExitsWith: .exitCode(0)) { Self.main { try co_yield() } }
  }

  @Test func `a body that throws ends it with 1, and its error is written`() async throws {
    let result = await #expect(processExitsWith: .exitCode(1), observing: [\.standardErrorContent]) {
      Self.main { throw CoroutineError.abandoned }
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    #expect(text.contains("Coroutine: the program has ended with an error: "))
  }

  @Test(arguments: [SIGTERM, SIGINT])
  func `a signal tells everything to finish, and the end is a success`(number: Int32) async throws {
    let result = await #expect(processExitsWith: .exitCode(0), observing: [\.standardOutputContent]) { [number] in
      Self.main {
        try co_scope { scope in
          let child = scope.launch { try co_await(co_stopping) }
          kill(getpid(), number)
          try child.join()
          if co_isStopping, !co_isCancelled { _ = write(STDOUT_FILENO, "good-bye", 8) }
        }
      }
    }
    let text = String(decoding: try #require(result).standardOutputContent, as: UTF8.self)
    #expect(text.contains("good-bye"))
  }

  // A program has the real clock.
  @Test(.tags(.realClock))
  func `a body that does not finish in time is cancelled, and the code names the signal`() async {
    await #expect(processExitsWith: .exitCode(128 + SIGTERM)) {
      Self.main(within: .milliseconds(10)) {
        kill(getpid(), SIGTERM)
        try co_delay(.seconds(100))
      }
    }
  }

  // The end of the cancelled body, and the cancellation of the coroutine that waits for it, come in any order.
  @Test(.inWorlds, arguments: [false, true])
  func `the code names the signal, in whatever order the cancelled coroutines run`(returns: Bool) throws {
    let arrivals = Channel<Int32>(1)
    try arrivals.send(SIGTERM)
    let code = try MainRun(arrivals, .milliseconds(10)).run {
      do { try co_delay(.seconds(100)) } catch { if !returns { throw error } }
    }
    #expect(code == (returns ? 0 : 128 + SIGTERM))
    #expect(worldTime == .milliseconds(10))
  }

  @Test(.inWorlds, arguments: ExtremeDurationTests.endless + ExtremeDurationTests.passed)
  func `the time to finish may be of any length`(duration: Duration) throws {
    let arrivals = Channel<Int32>(1)
    try arrivals.send(SIGTERM)
    let code = try MainRun(arrivals, duration).run { try co_delay(.seconds(1_000_000_000)) }
    #expect(code == (duration > .zero ? 0 : 128 + SIGTERM))
    #expect(worldTime == (duration > .zero ? .seconds(1_000_000_000) : .zero))
  }

  @Test func `a second signal cancels at once`() async {
    await #expect(processExitsWith: .exitCode(128 + SIGINT)) {
      Self.main(within: .seconds(1_000)) {
        kill(getpid(), SIGTERM)
        try co_await(co_stopping)
        kill(getpid(), SIGINT)
        try co_delay(.seconds(100))
      }
    }
  }

  // A program has the real clock.
  @Test(.tags(.realClock)) func `a cancelled body that returns nevertheless has succeeded`() async {
    await #expect(processExitsWith: .exitCode(0)) {
      Self.main(within: .milliseconds(1)) {
        kill(getpid(), SIGTERM)
        try? co_delay(.seconds(100))
      }
    }
  }
}
