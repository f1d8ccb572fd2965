import CCoroutine
import Coroutine
import Dispatch
import Glibc
import Synchronization
import Testing

/// Snapshots of stacks beside coroutines that walk, wait, begin and end all the time: each stack that a snapshot
/// accepts is one that its coroutine has had at that time.
///
/// - `CO_SOAK_SECONDS`: how long to go on; `make soak` sets it. Five seconds by default.
/// - `CO_SEED`: the seed of the walks. Random by default.
@Suite("Stress: stacks of random walks", .serialized, .timeLimit(.minutes(60)))
struct WalkSoakTests {
  private static var isSanitized: Bool {
    cco_compiled_sanitizers() & (CCO_ADDRESS_SANITIZER.rawValue | CCO_THREAD_SANITIZER.rawValue) != 0
  }

  @Test(.enabled(if: !isSanitized)) func `each accepted stack is one of the walks between two looks at their number`()
    async throws
  {
    let seconds = getenv("CO_SOAK_SECONDS").flatMap { Double(String(cString: $0)) }
    let stress = Stress()
    if seconds != nil { say("the seed is \(stress.seed)") }
    let (isOver, mutex) = (Census(), FairMutex())
    let walkers = (0..<256).map { Walker($0, seed: stress.seed) }
    let queues = [DispatchQueue(label: "walks.0"), nil, DispatchQueue(label: "walks.1"), nil]
    // Half of them are launched again and again, and end after some walks.
    let jobs = walkers.map { walker in
      co_launch(on: queues[walker.number % 4], name: walker.number % 2 == 0 ? "walker \(walker.number)" : nil) {
        if walker.number % 2 == 0 { return try walk(walker, limit: .max, mutex, until: isOver) }
        while isOver.now == 0 {
          let name = "walker \(walker.number)"
          try co_launch(on: queues[(walker.number + 1) % 4], name: name) {
            try walk(walker, limit: 5, mutex, until: isOver)
          }.join()
        }
      }
    }
    let result = try await onThread {
      var check = StackCheck(walkers)
      let end = ContinuousClock.now + .seconds(seconds ?? 5)
      // On a slow machine one look takes long.
      while ContinuousClock.now < end || check.seen.count < Walker.Call.allCases.count, check.wrong == nil {
        check.look()
      }
      return check
    }
    isOver.change()
    for job in jobs { try await job.value }
    if seconds != nil { say(result.summary) }
    #expect(result.wrong == nil, "\(stress.replay): \(result.wrong ?? "")")
    // Each wait, and each call, was seen.
    #expect(result.seen.count == Walker.Call.allCases.count, "\(result.summary)")
    #expect(result.torn * 10 < result.accepted, "\(result.summary)")
  }

  private func say(_ words: String) {
    let line = "walks: \(words)\n"
    _ = write(STDERR_FILENO, line, line.utf8.count)
  }

  private func onThread<R: Sendable>(_ body: @escaping @Sendable () throws -> R) async throws -> R {
    try await withCheckedThrowingContinuation { continuation in
      DispatchQueue(label: "checker").async { continuation.resume(with: Result { try body() }) }
    }
  }
}

/// Compares snapshots with the walks.
private struct StackCheck: Sendable {
  private let walkers: [Walker]
  private var calls: [UInt: Walker.Call?] = [:]
  private(set) var seen: Set<Walker.Call> = []
  private(set) var (looks, accepted, torn) = (0, 0, 0)
  /// The first stack that its coroutine cannot have had.
  private(set) var wrong: String?

  init(_ walkers: [Walker]) { self.walkers = walkers }

  var summary: String { "\(looks) snapshots, \(accepted) stacks accepted, \(torn) torn, calls seen: \(seen.count)" }

  mutating func look() {
    let before = walkers.map { $0.count.load(ordering: .acquiring) }
    let snapshot = CoroutineRuntime.snapshot(stacks: true)
    looks += 1
    for entry in snapshot.coroutines {
      guard let name = entry.name, name.hasPrefix("walker "), let number = Int(name.dropFirst(7)) else { continue }
      if entry.isTorn { torn += 1 }
      guard !entry.stack.isEmpty else { continue }
      let found = path(of: entry.stack)
      // Parked before its first walk, or between two: for a job, or in its first function.
      if found.isEmpty { continue }
      accepted += 1
      seen.formUnion(found)
      let walks = max(1, before[number])...max(1, walkers[number].count.load(ordering: .acquiring))
      if walks.contains(where: { walkers[number].path($0) == found }) { continue }
      let names = CoroutineRuntime.frames(at: entry.stack).map { $0.symbol ?? "?" }
      wrong = "\(name) had \(found), which is none of its walks \(walks): \(names)"
    }
  }

  /// The calls of a stack, from the first to the wait.
  private mutating func path(of stack: [UInt]) -> [Walker.Call] {
    stack.reversed().compactMap { address in
      if let known = calls[address] { return known }
      let call = CoroutineRuntime.frames(at: [address])[0].symbol.flatMap(Self.call)
      calls[address] = .some(call)
      return call
    }
  }

  private static let functions: [(String, Walker.Call)] = [
    ("walkA", .a), ("walkB", .b), ("walkC", .c), ("walkGenerator", .generator), ("waitPromise", .promise),
    ("waitReceive", .receive), ("waitLock", .lock), ("waitDelay", .delay), ("waitSelect", .select),
    ("waitYield", .yield),
  ]

  /// The function of a frame; nil for closures in it, and for others.
  private static func call(_ symbol: String) -> Walker.Call? {
    if symbol.contains("closure #") { return nil }
    return functions.first { symbol.contains($0.0) }?.1
  }
}
