import CCoroutine
import Coroutine
import Glibc
import Testing

/// A function that traps; its name is in no line, its address is.
@inline(never)
private func trapsHere(_ values: [Int], _ index: Int) -> Int { values[index] &+ 1 }

/// Ends the process, in a function that the compiler takes for one that returns.
@inline(never)
private func givesUp() { abort() }

/// The line about a coroutine whose thread gets a fatal signal.
@Suite("A coroutine that gets a fatal signal", .timeLimit(.minutes(10)))
struct FatalSignalTests {
  private static func line(_ result: ExitTest.Result?) -> (line: String, all: String) {
    let words = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
    return (words.split(separator: "\n").first { $0.hasPrefix("coroutine ") }.map(String.init) ?? "", words)
  }

  @Test func `is named with its launch site, its frames and the build ID, whether the backtracer is on or off`() async {
    let off = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      setenv("SWIFT_BACKTRACE", "enable=no", 1)
      _ = try await co_launch(name: "reads too far") { trapsHere([1, 2], 7) }.value
    }
    let (line, words) = Self.line(off)
    let trap =
      #/^coroutine "reads too far" \(id \d+\) got SIG(ILL|TRAP|ABRT) at 0x[0-9a-f]+; launched at [^ ]*FatalSignalTests.swift:\d+; frames( [^ ]+\+0x[0-9a-f]+){3,}; images [^ ]+ [0-9a-f]+/#
    #expect(line.contains(trap), "\(words)")
  }

  @Test func `is named when it calls abort, and when it touches no memory`() async {
    let aborted = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = try await co_launch(name: "gives up") { givesUp() }.value
    }
    let lost = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let nowhere = UnsafeMutablePointer<Int>(bitPattern: 4096)!
      _ = try await co_launch(name: "writes nowhere") { nowhere.pointee = 1 }.value
    }
    #expect(Self.line(aborted).line.hasPrefix("coroutine \"gives up\" (id "), "\(Self.line(aborted).all)")
    #expect(Self.line(aborted).line.contains(" got SIGABRT at "))
    #expect(Self.line(lost).line.contains(" got SIGSEGV at ") || isSanitized, "\(Self.line(lost).all)")
  }

  @Test func `a name with control characters forges no line`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = try await co_launch(name: "a\ncoroutine \"b\u{1B}[2J") { givesUp() }.value
    }
    #expect(Self.line(died).line.hasPrefix(#"coroutine "a\ncoroutine \"b\u{1B}[2J" (id "#), "\(Self.line(died).all)")
  }

  @Test func `a thread outside of any coroutine gets no line`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try await co_launch {}.value
      givesUp()
    }
    #expect(Self.line(died).line == "")
  }
}
