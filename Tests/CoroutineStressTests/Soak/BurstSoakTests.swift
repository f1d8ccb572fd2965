import CCoroutine
import Coroutine
import Glibc
import Testing

/// Launches and ends in bursts of random sizes.
///
/// `CO_SOAK_SECONDS`: how long; a second without it. `make soak` sets it.
@Suite("Stress: bursts of launches", .timeLimit(.minutes(60)))
struct BurstSoakTests {
  /// In a process of its own, because other tests use memory as well.
  @Test(.enabled(if: !Self.isSanitized, "a sanitizer keeps memory that was released"))
  func `bursts of launches of random sizes, stacks and ends leave the memory flat`() async {
    await #expect(processExitsWith: .success) {
      let stress = Stress()
      let seconds = getenv("CO_SOAK_SECONDS").flatMap { Double(String(cString: $0)) } ?? 1
      try await co_launch {
        var random = stress.random(1)
        let largest = stress.rounds(40_000, least: 2_000)
        try Self.burst(of: largest, &random)
        let before = try Self.restingMemory()
        let end = ContinuousClock.now + .seconds(seconds)
        var (bursts, launched) = (0, 0)
        while ContinuousClock.now < end || bursts < 5 {
          let size = Int.random(in: 1...largest, using: &random)
          try Self.burst(of: size, &random)
          bursts += 1
          launched += size
        }
        let most = before + 16 << 20
        let after = try Self.restingMemory(below: most)
        if seconds > 1 { print("\(bursts) bursts of \(launched) launches: \(before >> 10) KiB became \(after >> 10)") }
        #expect(after < most, "\(before) became \(after) in \(bursts) bursts; \(stress.replay)")
      }.value
    }
  }

  private static var isSanitized: Bool {
    cco_compiled_sanitizers() & (CCO_ADDRESS_SANITIZER.rawValue | CCO_THREAD_SANITIZER.rawValue) != 0
  }

  /// Launches so many coroutines, a third of which end at once, a third at a signal, and a third by a cancellation.
  private static func burst(of size: Int, _ random: inout SeededRandom) throws {
    let gate = Promise<Void>()
    var waiting: [Job<Void>] = []
    // Not the smallest: Swift Testing notes the first error that is thrown, which takes more than 8 KiB of stack.
    let sizes = [StackSize.bytes(64 << 10), .bytes(256 << 10), .standard]
    for number in 0..<size {
      let levels = Int.random(in: 1...8, using: &random)
      let job = co_launch(stack: sizes[Int.random(in: 0..<3, using: &random)]) {
        guard goDeep(levels) == levels else { fatalError("a frame was overwritten") }
        if number % 3 != 0 { try co_await(gate) }
      }
      if number % 3 != 0 { waiting.append(job) }
      if number.isMultiple(of: 64) { try co_yield() }
    }
    for (number, job) in waiting.enumerated() where number.isMultiple(of: 2) { job.cancel() }
    gate.fulfill(())
    for job in waiting { try? job.join() }
  }

  /// The resident memory when it has not decreased for six seconds: stacks and cells go back when they were unused from
  /// one look to the next, at looks that are two seconds apart.
  ///
  /// A slow machine may keep the thread that looks for longer: what is not below `most` has two minutes.
  private static func restingMemory(below most: Int = .max) throws -> Int {
    let start = ContinuousClock.now
    var (lowest, least, since) = (Int.max, Int.max, start)
    while ContinuousClock.now < since + .seconds(6) || lowest >= most && ContinuousClock.now < start + .seconds(120) {
      try co_delay(.milliseconds(50))
      let now = residentBytes
      lowest = min(lowest, now)
      if now < least - 1 << 20 { (least, since) = (now, .now) }
    }
    return lowest
  }

  private static var residentBytes: Int {
    guard let file = fopen("/proc/self/statm", "r") else { return 0 }
    defer { fclose(file) }
    var line = [CChar](repeating: 0, count: 128)
    guard fgets(&line, 128, file) != nil else { return 0 }
    let text = String(decoding: line.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    let fields = text.split(separator: " ")
    return fields.count > 1 ? (Int(fields[1]) ?? 0) * Int(getpagesize()) : 0
  }
}

/// Goes `levels` frames of about a KiB deep, and returns their number.
@inline(never)
private func goDeep(_ levels: Int) -> Int {
  withUnsafeTemporaryAllocation(of: Int.self, capacity: 120) { frame in
    frame.initialize(repeating: levels)
    return (levels > 1 ? goDeep(levels - 1) : 0) + (frame[levels] == levels ? 1 : 0)
  }
}
