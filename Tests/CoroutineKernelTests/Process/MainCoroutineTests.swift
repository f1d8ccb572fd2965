import Dispatch
import Foundation
import Glibc
import Testing

@testable import Coroutine

/// What becomes of a program whose main coroutine is run by `co_main`.
@Suite(.timeLimit(.minutes(10)))
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

  @Test(.inWorlds) func `a cancellation of something that the body has joined is its failure, also after a signal`()
    throws
  {
    let arrivals = Channel<Int32>(1)
    try arrivals.send(SIGTERM)
    #expect(throws: CancellationError.self) {
      try MainRun(arrivals, .seconds(10)).run {
        while !co_isStopping { try co_yield() }
        let other = co_launch { try waitForCancellation() }
        other.cancel()
        try other.join()
      }
    }
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

  /// What keeps the threads of a program whose body does not react to signals.
  enum Stuck: String, CaseIterable, Codable {
    case computing, computingOnMainQueue, inSystemCall, allWorkers

    func run() throws {
      switch self {
      case .computing:
        // The first two signals have their meanings.
        kill(getpid(), SIGTERM)
        while !co_isStopping {}
        kill(getpid(), SIGTERM)
        while !co_isCancelled {}
        kill(getpid(), SIGTERM)
        while true {}
      case .computingOnMainQueue:
        try co_switch(to: .main)
        while true { kill(getpid(), SIGTERM) }
      case .inSystemCall:
        sendForEver()
        while true { pause() }
      case .allWorkers:
        for _ in 0..<200 { co_launch { while true { pause() } } }
        sendForEver()
        while true { pause() }
      }
    }

    private func sendForEver() { Thread { while true { kill(getpid(), SIGTERM) } }.start() }
  }

  @Test(arguments: Stuck.allCases)
  func `a third signal ends a program whose body does not wait, and names what runs`(_ stuck: Stuck) async throws {
    let result = await #expect(processExitsWith: .signal(SIGTERM), observing: [\.standardErrorContent]) { [stuck] in
      Self.main { try stuck.run() }
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    // Without the lines about stalls, and about the spare workers that they have taken before a late third signal.
    let lines = text.split(separator: "\n").filter {
      $0.hasPrefix("Coroutine: ") && !$0.contains("without a suspension") && !$0.contains("spare workers are taken")
    }
    #expect(lines.count == 1)
    let line = try #require(lines.first)
    #expect(line.hasPrefix("Coroutine: the third signal, SIGTERM, ends the process. Running: "))
    if stuck != .allWorkers { #expect(line.contains("\"main\" running for at most ")) }
    #expect(line.contains("CoroutineKernelTests/MainCoroutineTests.swift:") || line.contains("MainCoroutine.swift:"))
  }

  @Test func `a third signal ends a program that waits and will not be cancelled`() async throws {
    let result = await #expect(processExitsWith: .signal(SIGINT), observing: [\.standardErrorContent]) {
      Self.main {
        Thread { while true { kill(getpid(), SIGINT) } }.start()
        co_shield { while true { try? co_delay(.seconds(100)) } }
      }
    }
    // The coroutine may just be on its way into its first wait.
    let ended = try #require(result)
    let sentence = "the third signal, SIGINT, ends the process. "
    #expect(ended.said(sentence + "No coroutine runs; ") || ended.said(sentence + "Running: "))
  }

  @Test func `a hang-up that the program's starter ignores stays ignored`() async {
    await #expect(processExitsWith: .exitCode(7)) {
      signal(SIGHUP, SIG_IGN)
      let main = {
        co_main(stoppingOn: [SIGTERM, SIGHUP]) {
          var effect = sigaction()
          sigaction(SIGHUP, nil, &effect)
          guard unsafeBitCast(effect.__sigaction_handler.sa_handler, to: Int.self) == 1 else { return }
          kill(getpid(), SIGTERM)
          try co_await(co_stopping)
          exit(7)
        }
      }
      main()
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
