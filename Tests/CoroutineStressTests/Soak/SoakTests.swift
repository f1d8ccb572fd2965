import CCoroutine
import Coroutine
import Dispatch
import Glibc
import Testing

/// Random programs that use the whole library, each from a seed, one after another.
///
/// - `CO_SOAK_SECONDS`: how long to go on; three seconds by default. `make soak` sets it.
/// - `CO_SEED`: the seed of the first program; the next one's is one higher. Random by default.
///
/// A finding names the program's seed: `make soak SEED=… SECONDS=10` runs it first.
@Suite("Stress: random programs", .serialized)
struct SoakTests {
  @Test func `random programs lose nothing, break no lock and end`() async {
    let seconds = variable("CO_SOAK_SECONDS").flatMap { Double($0) }
    let first = Stress().seed
    let soak = Soak(seconds: seconds ?? 3, firstSeed: first, isVerbose: seconds != nil)
    // A plain thread: the conductor polls, which neither a Task nor a coroutine should.
    let outcome = await withCheckedContinuation { continuation in
      DispatchQueue(label: "soak").async { continuation.resume(returning: soak.run()) }
    }
    #expect(outcome.programs > 0)
    for finding in outcome.findings { Issue.record("seed \(outcome.seed): \(finding)") }
  }

  @Test func `the same seed makes the same program`() {
    for seed in UInt64(0)..<20 {
      #expect("\(SoakMaker.program(seed: seed))" == "\(SoakMaker.program(seed: seed))")
    }
    #expect("\(SoakMaker.program(seed: 1))" != "\(SoakMaker.program(seed: 2))")
  }

  private func variable(_ name: String) -> String? { getenv(name).map { String(cString: $0) } }
}

/// Runs programs until the time is up or one has failed.
struct Soak: Sendable {
  let seconds: Double
  let firstSeed: UInt64
  let isVerbose: Bool

  struct Outcome: Sendable {
    var programs = 0
    var steps = 0
    var seed: UInt64 = 0
    var findings: [String] = []
  }

  func run() -> Outcome {
    // Rejections and second resumptions are part of the programs.
    let hook = CoroutineRuntime.unhandledErrorHandler
    CoroutineRuntime.unhandledErrorHandler = { _ in }
    defer { CoroutineRuntime.unhandledErrorHandler = hook }
    let slow = CCO_ADDRESS_SANITIZER.rawValue | CCO_THREAD_SANITIZER.rawValue
    let isSanitized = cco_compiled_sanitizers() & slow != 0
    let conductor = SoakConductor(patience: .seconds(isSanitized ? 120 : 30))
    let live = CoroutineRuntime.liveCount
    let (clock, start) = (ContinuousClock(), ContinuousClock().now)
    var outcome = Outcome(seed: firstSeed)
    var reported = start
    say("the first seed is \(firstSeed)")
    repeat {
      outcome.seed = firstSeed &+ UInt64(outcome.programs)
      let result = conductor.run(SoakMaker.program(seed: outcome.seed), otherThan: live)
      outcome.programs += 1
      outcome.steps += result.steps
      if !result.findings.isEmpty {
        outcome.findings = result.findings
        break
      }
      if clock.now - reported > .seconds(10) {
        reported = clock.now
        report(outcome, clock.now - start)
      }
    } while clock.now - start < .seconds(seconds)
    report(outcome, clock.now - start)
    return outcome
  }

  private func report(_ outcome: Outcome, _ time: Duration) {
    let rate = Double(outcome.steps) / (time / .seconds(1))
    say("\(outcome.programs) programs, \(outcome.steps) operations, \(Int(rate)) a second, at seed \(outcome.seed)")
  }

  private func say(_ line: String) {
    let line = "soak: \(line)\n"
    if isVerbose { _ = write(STDERR_FILENO, line, line.utf8.count) }
  }
}
