import Coroutine
import CoroutineTesting
import Glibc

/// A random program of coroutines that lock, join, ask, select, time out, and cancel each other, in a world.
///
/// A monitor searches for deadlocks again and again. From its first finding on nothing is cancelled any more. Then the
/// members of the circles must not take a step, whatever time passes. At the end nothing can run, and the monitor
/// compares what is left with what each coroutine has noted that it waits for.
final class DeadlockProgram: @unchecked Sendable {
  // Sound because a world runs its coroutines on one thread.

  /// What a coroutine is about to wait for, if exactly one other has to act.
  enum Wait {
    case lock(Int)
    case join(Int)
    case other
  }

  private struct Random: RandomNumberGenerator {
    var state: UInt64
    mutating func next() -> UInt64 {
      state &+= 0x9E37_79B9_7F4A_7C15
      var mixed = (state ^ (state >> 30)) &* 0xBF58_476D_1CE4_E5B9
      mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
      return mixed ^ (mixed >> 31)
    }
  }

  private var random: Random
  private let locks: [FairMutex]
  private let channel = Channel<Int>(1)
  private var holders: [Int?]
  private var jobs: [Job<Void>] = []
  private var waits: [Wait] = []
  private var steps: [Int] = []
  private var isFrozen = false
  /// The members of the circles that were found first, by their names, and the steps that they had taken.
  private var found: [Int: Int] = [:]
  private(set) var failure: String?
  private(set) var circleCount = 0
  private let count: Int
  private var timers: [Bool]

  init(seed: UInt64) {
    random = Random(state: seed)
    count = Int.random(in: 2...5, using: &random)
    let lockCount = Int.random(in: 1...3, using: &random)
    locks = (0..<lockCount).map { _ in FairMutex() }
    holders = Array(repeating: nil, count: lockCount)
    timers = Array(repeating: false, count: count)
  }

  /// The program, in a world of its own.
  static func run(seed: UInt64) -> DeadlockProgram {
    let program = DeadlockProgram(seed: seed)
    do {
      try World(seed: seed).run { try program.main() }
    } catch is World.LeftRunningError {
    } catch {
      program.failure = program.failure ?? "\(error)"
    }
    return program
  }

  private func main() throws {
    waits = Array(repeating: .other, count: count)
    steps = Array(repeating: 0, count: count)
    for number in 0..<count {
      jobs.append(co_launch(name: "\(number)") { [self] in act(number, depth: 0) })
    }
    for _ in 0..<Int.random(in: 3...12, using: &random) {
      look()
      try co_delay(.milliseconds(Int.random(in: 0...3, using: &random)))
    }
    isFrozen = true
    // Every timer of the program has fired by then.
    try co_delay(.seconds(3600))
    look()
    checkEnd()
  }

  // MARK: The monitor

  private func look() {
    let circles = CoroutineRuntime.deadlocks()
    if found.isEmpty, !circles.isEmpty {
      isFrozen = true
      for member in circles.joined() {
        guard let number = member.name.flatMap(Int.init) else { continue }
        found[number] = steps[number]
      }
      circleCount = circles.count
    }
    for (number, step) in found where steps[number] != step && failure == nil {
      failure = "\(number) was reported, and has gone on"
    }
    for number in found.keys where !circles.joined().contains(where: { $0.name == "\(number)" }) && failure == nil {
      failure = "\(number) was reported, and is reported no more"
    }
  }

  /// The one that `number` waits for by its own notes.
  private func next(_ number: Int) -> Int? {
    if jobs[number].isFinished || timers[number] { return nil }
    return switch waits[number] {
    case .lock(let lock): holders[lock]
    case .join(let other): jobs[other].isFinished ? nil : other
    case .other: nil
    }
  }

  private func checkEnd() {
    let reported = Set(CoroutineRuntime.deadlocks().joined().compactMap { $0.name.flatMap(Int.init) })
    for start in 0..<count {
      var current = next(start)
      for _ in 0..<count where current != start { current = current.flatMap(next) }
      if current == start, !reported.contains(start), failure == nil {
        failure = "\(start) is in a circle, and is not reported: \(CoroutineRuntime.dump())"
      }
    }
  }

  // MARK: A coroutine

  private func act(_ number: Int, depth: Int) {
    for _ in 0..<Int.random(in: 1...4, using: &random) {
      try? step(number, depth)
      steps[number] += 1
      waits[number] = .other
      if jobs[number].isCancelled { return }
    }
  }

  private func step(_ number: Int, _ depth: Int) throws {
    let other = Int.random(in: 0..<count, using: &random)
    let lock = Int.random(in: 0..<locks.count, using: &random)
    switch Int.random(in: 0..<12, using: &random) {
    case 0, 1, 2, 3: if depth < 3 { try whileLocked(lock, number) { act(number, depth: depth + 1) } }
    case 4, 5:
      waits[number] = .join(other)
      try jobs[other].join()
    case 6: try co_delay(.milliseconds(Int.random(in: 0...2, using: &random)))
    case 7:
      let had = timers[number]
      timers[number] = true
      defer { timers[number] = had }
      try co_timeout(.milliseconds(Int.random(in: 1...4, using: &random))) { try step(number, depth) }
    case 8: if !isFrozen { jobs[other].cancel() }
    case 9: try select(number, lock, other)
    case 10: try inScope(number, depth)
    default: try co_yield()
    }
  }

  private func whileLocked(_ lock: Int, _ number: Int, _ body: () throws -> Void) throws {
    waits[number] = .lock(lock)
    try locks[lock].withLock {
      waits[number] = .other
      holders[lock] = number
      defer { holders[lock] = nil }
      try body()
    }
  }

  private func select(_ number: Int, _ lock: Int, _ other: Int) throws {
    waits[number] = .other
    let way = Int.random(in: 0..<4, using: &random)
    let (wanted, awaited) = (locks[lock], jobs[other])
    try co_select {
      wanted.onLock { wanted.unlock() }
      if other != number { awaited.onAwait { _ in } }
      if way == 0 { channel.onReceive { _ in } }
      if way == 1 { SelectCase.onTimeout(.milliseconds(2)) {} }
    }
  }

  /// A scope whose child wants a lock, or joins one of the others; the owner waits for it.
  private func inScope(_ number: Int, _ depth: Int) throws {
    let lock = Int.random(in: 0..<locks.count, using: &random)
    let other = Int.random(in: 0..<count, using: &random)
    let joins = Bool.random(using: &random)
    waits[number] = .other
    try co_scope { scope in
      scope.launch(name: "child of \(number)") { [self] in
        if joins { try? jobs[other].join() } else { try? locks[lock].withLock {} }
      }
      try co_yield()
    }
  }
}
