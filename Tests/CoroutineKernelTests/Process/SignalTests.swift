import CCoroutine
import CTestSupport
import Dispatch
import Foundation
import Glibc
import Synchronization
import Testing

@testable import Coroutine

private let hasThreadSanitizer = cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue != 0
private let othersCount = Atomic<Int>(0)
// Sound because it is written before the signal is sent. In memory that is allocated: Swift 6.3 makes a global variable
// of this type four bytes shorter than the copies that it makes of it.
nonisolated(unsafe) private let before = {
  let memory = UnsafeMutablePointer<sigaction>.allocate(capacity: 1)
  memory.initialize(to: sigaction())
  return memory
}()

/// Each test in a process of its own, since signals are the process's.
@Suite(.timeLimit(.minutes(10)))
struct SignalTests {
  @Test func `a channel receives the signals it is for`() async {
    await #expect(processExitsWith: .exitCode(7)) {
      let signals = co_signals([SIGTERM, SIGHUP])
      let received = co_launch {
        kill(getpid(), SIGTERM)
        let first = try signals.receive()
        kill(getpid(), SIGHUP)
        let second = try signals.receive()
        return first == SIGTERM && second == SIGHUP
      }
      if try await received.value { exit(7) }
    }
  }

  @Test func `every channel of a signal gets it`() async {
    await #expect(processExitsWith: .exitCode(7)) {
      let channels = (0..<3).map { _ in co_signals([SIGUSR1]) }
      kill(getpid(), SIGUSR1)
      let received = co_launch { try channels.map { try $0.receive() } }
      if try await received.value == [SIGUSR1, SIGUSR1, SIGUSR1] { exit(7) }
    }
  }

  @Test func `a signal without an open channel has its former effect`() async {
    await #expect(processExitsWith: .signal(SIGTERM)) {
      let signals = co_signals([SIGTERM])
      signals.close()
      kill(getpid(), SIGTERM)
      // The signal ends the process.
      while true { await Task.yield() }
    }
  }

  // ThreadSanitizer ends a child of many threads.
  @Test(.enabled(if: cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue == 0))
  func `a signal of a forked child has its former effect, and is not noticed by the parent`() async {
    await #expect(processExitsWith: .exitCode(7)) {
      signal(SIGUSR1, SIG_IGN)
      let signals = co_signals([SIGUSR1])
      // The handler would leave a mark that no thread of the child takes.
      let isIgnored: @convention(c) (UnsafeMutableRawPointer?) -> Int32 = { _ in
        var action = sigaction()
        sigaction(SIGUSR1, nil, &action)
        return unsafeBitCast(action.__sigaction_handler.sa_handler, to: Int.self) == 1 ? 0 : 1
      }
      while !cts_may_fork() { sched_yield() }
      let answer = cts_in_child(30, isIgnored, nil)
      kill(getpid(), SIGUSR1)
      let received = co_launch { try signals.receive() }
      if answer == 0, try await received.value == SIGUSR1 { exit(7) }
    }
  }

  /// At each moment at which another thread may fork: before and after the kernel has the new effect, as the first
  /// channel asks for the signal, and as the last one has gone.
  @Test(.enabled(if: cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue == 0))
  func `a child that is forked while the effect of a signal changes has the former effect`() async {
    await #expect(processExitsWith: .exitCode(7)) {
      signal(SIGUSR1, SIG_IGN)
      if cts_fork_at_changes(SIGUSR1) != 0 { exit(1) }
      let signals = co_signals([SIGUSR1])
      if cts_children_at_changes() != 2 { exit(2) }
      signals.close()
      kill(getpid(), SIGUSR1)
      while cts_children_at_changes() < 4 { sched_yield() }
      exit(cts_children_with_other_effect() == 0 ? 7 : 3)
    }
  }

  // ThreadSanitizer ends a child of many threads.
  @Test(.enabled(if: cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue == 0))
  func `a signal that comes to a forked child before fork returns has its former effect`() async {
    await #expect(processExitsWith: .exitCode(7)) {
      let signals = co_signals([SIGTERM])
      // As on the main thread, which does not block the signal: fork lets it in before it calls the library's handler.
      var none = sigset_t()
      var former = sigset_t()
      sigemptyset(&none)
      pthread_sigmask(SIG_SETMASK, &none, &former)
      let isOver = (0..<200).allSatisfy { _ in
        let child = cts_fork(30)
        while child == 0 { pause() }
        kill(child, SIGTERM)
        return cts_end_of(child) == -SIGTERM
      }
      pthread_sigmask(SIG_SETMASK, &former, nil)
      // None of them was the parent's.
      if isOver, case .empty = signals.tryReceive() { exit(7) }
    }
  }

  @Test func `a new channel may follow a closed one`() async {
    await #expect(processExitsWith: .exitCode(7)) {
      signal(SIGUSR1, SIG_IGN)
      let first = co_signals([SIGUSR1])
      first.close()
      kill(getpid(), SIGUSR1)
      let second = co_signals([SIGUSR1])
      let received = co_launch {
        // One may be lost to the former effect, to ignore it, while the second channel was added.
        while true {
          kill(getpid(), SIGUSR1)
          if case .received(let number) = second.tryReceive() { return number }
          try co_yield()
        }
      }
      if try await received.value == SIGUSR1 { exit(7) }
    }
  }

  /// Other code that handles the signal.
  enum Other: CaseIterable, Codable {
    case source, handler, handlerThatCallsTheOneBefore

    func install() -> (any DispatchSourceSignal)? {
      switch self {
      case .source:
        let source = DispatchSource.makeSignalSource(signal: SIGUSR1, queue: DispatchQueue(label: "source"))
        source.setEventHandler { othersCount.wrappingAdd(1, ordering: .relaxed) }
        source.resume()
        return source
      case .handler: signal(SIGUSR1) { _ in othersCount.wrappingAdd(1, ordering: .relaxed) }
      case .handlerThatCallsTheOneBefore:
        var action = sigaction()
        action.sa_flags = SA_SIGINFO
        action.__sigaction_handler.sa_sigaction = { number, info, context in
          othersCount.wrappingAdd(1, ordering: .relaxed)
          let handler = before.pointee.__sigaction_handler
          if before.pointee.sa_flags & SA_SIGINFO != 0 { handler.sa_sigaction?(number, info, context) }
        }
        var former = sigaction()
        sigaction(SIGUSR1, &action, &former)
        before.pointee = former
      }
      return nil
    }
  }

  // ThreadSanitizer defers a handler until its thread makes a call, and the main thread, which Dispatch lets sleep,
  // makes none.
  @Test(arguments: hasThreadSanitizer ? [.handler, .handlerThatCallsTheOneBefore] : Other.allCases, [true, false])
  func `a handler of other code and a channel both get each signal, whichever is there first`(
    _ other: Other,
    _ isFirst: Bool
  ) async {
    await #expect(processExitsWith: .exitCode(7)) { [other, isFirst] in
      var source = isFirst ? other.install() : nil
      let signals = co_signals([SIGUSR1])
      if !isFirst { source = other.install() }
      let isTold = co_launch {
        /// Sends the signal once; returns whether both have got it in time.
        func send(within milliseconds: Int) throws -> Bool {
          while case .received = signals.tryReceive() {}
          let others = othersCount.load(ordering: .relaxed)
          kill(getpid(), SIGUSR1)
          for _ in 0..<milliseconds {
            if signals.count > 0, othersCount.load(ordering: .relaxed) != others { return true }
            try co_delay(.milliseconds(1))
          }
          return false
        }
        // A source registers some time after its call. A handler that is installed later is replaced in its turn, some
        // time after; before, one signal may reach either.
        for _ in 0..<5 { while try !send(within: 100) {} }
        // Dispatch may take a signal before the thread that would run the handler does.
        for index in 0..<500 where try !send(within: 20_000) { fatalError("signal \(index) reached one of them alone") }
      }
      try await isTold.value
      withExtendedLifetime(source) {}
      exit(7)
    }
  }

  enum Start: String, CaseIterable {
    case blocked = ""
    case blockedAndIgnored = "trap '' TERM USR2;"
  }

  /// The process ends by `exit` on another thread, and the main thread, which waits, keeps what it has in registers.
  private static let withoutLeaks = "export ASAN_OPTIONS=detect_leaks=0;"

  // A process of its own from the start on: every thread inherits the mask that the first one has.
  @Test(arguments: ["channel", "main", "mainElsewhere", "dump"], Start.allCases)
  func `a signal that the process was started with blocked is noticed`(_ use: String, _ start: Start) async throws {
    let program = "\(start.rawValue) \(Self.withoutLeaks) exec '\(folderOfTests())/BlockedSignals' \(use)"
    let end = try await onCoroutine { try co_blocking { cts_end_of(cts_start(CTS_SPAWN_WITH_MASK, program)) } }
    #expect(end == 7)
  }

  @Test func `a signal that the process was started with blocked is blocked again after the close`() async throws {
    let program = "\(Self.withoutLeaks) exec '\(folderOfTests())/BlockedSignals' closed"
    let end = try await onCoroutine { try co_blocking { cts_end_of(cts_start(CTS_SPAWN_WITH_MASK, program)) } }
    #expect(end == 7)
  }

  @Test func `a signal is noticed while no queue and no worker has a thread left`() async {
    await #expect(processExitsWith: .exitCode(7)) {
      let signals = co_signals([SIGUSR1])
      // More than the worker pool and Dispatch have threads.
      for _ in 0..<80 { co_launch { while true { pause() } } }
      for _ in 0..<300 { DispatchQueue.global().async { while true { pause() } } }
      let thread = Thread {
        kill(getpid(), SIGUSR1)
        while true { if case .received = signals.tryReceive() { exit(7) } }
      }
      thread.start()
      while true { pause() }
    }
  }

  @Test(arguments: [SIGKILL, SIGSTOP, 0, 1_000])
  func `a signal that no process can handle ends it with a sentence`(number: Int32) async throws {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { [number] in
      _ = co_signals([number])
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    #expect(text.contains("co_signals: signal \(number) cannot be handled by a process"))
  }

  @Test func `a signal that reports an error of an instruction is refused`() async throws {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = co_signals([SIGSEGV])
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    #expect(text.contains("co_signals: signal 11 reports an error of the running instruction"))
  }
}
