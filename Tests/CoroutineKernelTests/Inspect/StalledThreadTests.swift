import CLinux
import Dispatch
import Foundation
import Glibc
import Synchronization
import Testing

@testable import Coroutine

/// Which thread stalls, and where its coroutine is; queues of the program; the line that is written without a handler.
///
/// Each in a process of its own, because the handler is the process's. The watch looks at threads by the real clock.
@Suite("A stalled thread", .timeLimit(.minutes(10)), .tags(.realClock))
struct StalledThreadTests {
  /// The signal that asks for frames must not end a call of the program, or cut it short.
  @Test func `is asked only in calls that the signal does not change`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      var (full, empty, pair): ([Int32], [Int32], [Int32]) = ([0, 0], [0, 0], [0, 0])
      #expect(pipe(&full) == 0 && pipe(&empty) == 0)
      #expect(socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0, &pair) == 0)
      let (full1, empty0, pair0) = (full[1], empty[0], pair[0])
      let calls: [(name: String, isAsked: Bool, body: @Sendable () -> Void)] = [
        ("read", true, { _ = read(empty0, UnsafeMutableRawPointer.allocate(byteCount: 1, alignment: 1), 1) }),
        ("read", false, { _ = read(pair0, UnsafeMutableRawPointer.allocate(byteCount: 1, alignment: 1), 1) }),
        ("write", false, { _ = write(full1, [UInt8](repeating: 0, count: 1 << 20), 1 << 20) }),
        ("futex", false, { _ = DispatchSemaphore(value: 0).wait(timeout: .now() + 600) }),
      ]
      for call in calls {
        let thread = Locked<Int32>(0)
        startThread {
          thread.current = clinux_thread_id()
          call.body()
        }
        var seen: String?
        while seen != call.name, !Task.isCancelled {
          let number = clinux_thread_call("/proc/self/task", thread.current)
          seen = number < 0 ? nil : clinux_call_name(number).map { String(cString: $0) }
        }
        #expect(clinux_tolerates_signals(thread.current) == call.isAsked, "\(call.name)")
      }
      #expect(!clinux_tolerates_signals(0))
    }
  }

  @Test func `that computes is named, with the frames of its coroutine`() async throws {
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      let stalls = Stalls(after: .milliseconds(20))
      let (isOver, callers, threads) = (Flag(), Locked<[UInt]>([]), Locked<Set<Int32>>([]))
      co_launch(name: "hog") {
        while !isOver.isRaised {
          callers.current = returnAddresses()
          threads.withLock { _ = $0.insert(clinux_thread_id()) }
          let count = stalls.all.count
          while stalls.all.count == count && !isOver.isRaised {}
          try co_yield()
        }
      }
      // On a busy machine the thread may answer too late, and the report is without frames.
      let stall = stalls.first { isSanitized || !$0.stack.isEmpty }
      isOver.raise()
      verify(threads.current.contains(stall.thread), stall)
      verify(stall.launchSite?.contains("StalledThreadTests.swift:") == true, stall)
      // The frames below the body, as the C library's unwinder finds them; the innermost ones differ.
      verify(isSanitized || Set(callers.current).intersection(stall.stack).count >= 3, stall)
    }
    #expect(String(decoding: try #require(result).standardErrorContent, as: UTF8.self) == "")
  }

  @Test func `of a queue of the program is reported as one of a worker is`() async throws {
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      let isOver = Flag()
      let idle = co_launch(on: taggedQueue("idle")) { _ = outcome { try waitForCancellation() } }
      settle(1)
      let stalls = Stalls(after: .milliseconds(20))
      // Blocks of its own do not count.
      taggedQueue("blocks").async { while !isOver.isRaised {} }
      let job = co_launch(on: taggedQueue("busy"), name: "hog") { while !isOver.isRaised {} }
      let stall = stalls.first()
      verify(stall.coroutine?.contains("hog") == true && stall.activity == .computing, stall)
      // A thread of Dispatch blocks the signal that would ask for its frames.
      verify(stall.worker == "coroutine.tests.busy", stall)
      isOver.raise()
      try await job.value
      idle.cancel()
      verify(stalls.all.count == 1, stall)
    }
    #expect(String(decoding: try #require(result).standardErrorContent, as: UTF8.self) == "")
  }

  /// A queue that has read its clock runs four coroutines, if each is new, before it reads it again.
  @Test func `is reported for each of two coroutines that stall before the clock is read again`() async {
    await #expect(processExitsWith: .success) {
      let hasBegun = Flag()
      // The watch waits in the first report until the second hog has begun, and so finds that one at its next look. The
      // first one has kept the thread for 200 ms more by then, which are no part of the second one's time.
      let stalls = Stalls(after: .milliseconds(20)) { stall in
        while stall.coroutine?.contains("first") == true, !hasBegun.isRaised { sched_yield() }
      }
      // Before the launch: the watch may find the first one before that has come to its first line.
      let launch = Clock.now
      let (first, second) = try await co_launch(on: taggedQueue("busy")) {
        (
          co_launch(name: "first hog") { () -> Duration in
            while stalls.all.isEmpty {}
            let kept = Duration.nanoseconds(Int64(Clock.now - launch))
            spin(200)
            return kept
          },
          co_launch(name: "second hog") { () -> Duration in
            let start = Clock.now
            hasBegun.raise()
            while stalls.all.count < 2 {}
            return Duration.nanoseconds(Int64(Clock.now - start))
          }
        )
      }.value
      let kept = [try await first.value, try await second.value]
      let all = stalls.all
      verify(all.count == 2 && all[0].coroutine?.contains("first") == true, all.first)
      verify(all[1].coroutine?.contains("second") == true && all[1].launchSite != nil, all.last)
      verify(all[0].duration <= kept[0], all.first)
      verify(all[1].duration <= kept[1], all.last)
    }
  }

  @Test func `in a read goes on reading after it was asked, and one that sleeps is not asked`() async throws {
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      ThreadStack.patience.store(30_000_000_000, ordering: .relaxed)
      let stalls = Stalls(after: .milliseconds(20))
      let pipe = PipePair()
      let reader = co_launch(name: "reader") { () -> Int in
        var byte: UInt8 = 0
        _ = fcntl(pipe.reader, F_SETFL, 0)
        return read(pipe.reader, &byte, 1)
      }
      let reading = stalls.first()
      verify(reading.activity == .systemCall("read") && (isSanitized || !reading.stack.isEmpty), reading)
      pipe.put()
      let count = try await reader.value
      verify(count == 1, reading)
      // A poll fails if a signal arrives.
      let other = PipePair()
      let sleeper = co_launch(name: "sleeper") { () -> Int32 in
        var query = pollfd(fd: other.reader, events: Int16(POLLIN), revents: 0)
        return poll(&query, 1, -1)
      }
      let slept = stalls.first { $0.coroutine?.contains("sleeper") == true }
      verify(slept.stack.isEmpty, slept)
      other.put()
      let result = try await sleeper.value
      verify(result == 1, slept)
    }
    #expect(String(decoding: try #require(result).standardErrorContent, as: UTF8.self) == "")
  }

  @Test(.enabled(if: !isSanitized)) func `is written with the program's innermost functions`() async throws {
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      ThreadStack.patience.store(30_000_000_000, ordering: .relaxed)
      let stalls = Stalls.byDefault()
      // A thread that answers in the first instructions of a function hides the one that has called it, and then the
      // line has other functions: one of many is enough.
      for name in "abcdefghijklmno" {
        let count = stalls.all.count
        try await co_launch(name: String(name)) { while stalls.all.count == count { spin(1) } }.value
        let names = CoroutineRuntime.frames(at: stalls.all.last?.stack ?? []).compactMap(\.symbol)
        if names.contains(where: { $0.contains("CoroutineKernelTests.spin(") }) { break }
      }
      waitForLines()
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    let lines = text.split(separator: "\n").filter { $0.contains("without a suspension") }
    #expect(lines.contains { $0.contains(#/; in .*CoroutineKernelTests.spin\(Swift.UInt64\)/#) }, "\(text)")
    #expect(lines.allSatisfy { $0.components(separatedBy: ", called by ").count <= 3 }, "\(text)")
  }

  @Test func `is written once for each launch site and name but digits, unless there is a handler`() async throws {
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      let stalls = Stalls.byDefault()
      for (number, name) in ["number 1", "number 27"].enumerated() {
        try await co_launch(name: name) { while stalls.all.count == number { spin(1) } }.value
      }
      CoroutineRuntime.onStall(nil)
      // Each stall counts, also without a handler.
      let count = CoroutineRuntime.metrics.stalls
      try await co_launch(name: "third") {
        while CoroutineRuntime.metrics.stalls == count { spin(1) }
        // It counts before a handler would be called, which is at one of the next looks.
        spin(200)
      }.value
      waitForLines()
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    let lines = text.split(separator: "\n").filter { $0.contains("without a suspension") }
    #expect(lines.count == 1, "\(text)")
    #expect(lines.first?.hasPrefix("Coroutine: \"number 1\" (id ") == true, "\(text)")
  }
}

private final class Stalls: Sendable {
  private let stalls = Locked<[CoroutineRuntime.Stall]>([])

  /// `also` is called for each stall, after it is in `all`.
  init(after threshold: Duration, also: @escaping @Sendable (CoroutineRuntime.Stall) -> Void = { _ in }) {
    CoroutineRuntime.onStall(after: threshold) { [stalls] stall in
      stalls.withLock { $0.append(stall) }
      also(stall)
    }
  }

  /// Keeps the handler and the threshold of a program that has set none, and notes what the handler has got.
  static func byDefault() -> Stalls {
    guard let handler = CoroutineRuntime.Stall.currentHandler else { preconditionFailure("there is no handler") }
    let noted = Stalls()
    CoroutineRuntime.onStall { [stalls = noted.stalls] stall in
      handler(stall)
      stalls.withLock { $0.append(stall) }
    }
    return noted
  }

  private init() {}

  var all: [CoroutineRuntime.Stall] { stalls.current }

  func first(where isMatch: (CoroutineRuntime.Stall) -> Bool = { _ in true }) -> CoroutineRuntime.Stall {
    while true {
      if let stall = all.first(where: isMatch) { return stall }
      sched_yield()
    }
  }
}

/// The addresses of the C library's unwinder, which Swift's module of the library does not declare.
private func returnAddresses() -> [UInt] {
  typealias Backtrace = @convention(c) (UnsafeMutablePointer<UInt>, Int32) -> Int32
  let backtrace = unsafeBitCast(dlsym(nil, "backtrace"), to: Backtrace.self)
  return [UInt](unsafeUninitializedCapacity: 32) { addresses, count in
    count = Int(backtrace(addresses.baseAddress!, 32))
  }
}

/// Waits until the lines about stalls are written, by threads of their own.
private func waitForLines() {
  while StallLines.writing.load(ordering: .acquiring) > 0 { sched_yield() }
}

/// Uses the processor for some milliseconds.
@inline(never)
private func spin(_ milliseconds: UInt64) {
  let end = Clock.ofThread + milliseconds * 1_000_000
  while Clock.ofThread < end {}
}

/// Ends the process with a failure unless `fact` is true.
private func verify(_ fact: Bool, _ stall: CoroutineRuntime.Stall?, line: UInt = #line) {
  if fact { return }
  writeToStandardError("line \(line): not true of \(stall.map { "\($0), \($0)" } ?? "no stall")\n")
  exit(1)
}
