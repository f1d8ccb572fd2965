import Dispatch
import Synchronization
import Testing

@testable import Coroutine

/// The order in which a worker of the shared scheduler runs jobs; here in a pool of one worker, so that there is no
/// stealing.
@Suite(.timeLimit(.minutes(10)))
struct LaunchOrderTests {
  private let queue: DispatchQueue

  /// One worker per test, because earlier pops would count.
  ///
  /// A pool lives for ever, as the shared one does.
  init() {
    let group = Unmanaged.passRetained(WorkerPool(count: 1, label: "launch order"))
    // The watchdog never starts: on a busy machine it would move the jobs of a worker that waits for a processor.
    group._withUnsafeGuaranteedRef { $0.watching.store(true, ordering: .relaxed) }
    queue = group.takeUnretainedValue().workers[0].currentQueue!
  }

  @Test func `a tree runs depth first, and siblings in the order of their launches`() throws {
    let trace = Locked<[String]>([])
    try co_launch(on: queue) { try visit("1", 3, trace) }.blockingWait()
    let preorder = [
      "1", "11", "111", "112", "113", "12", "121", "122", "123", "13", "131", "132", "133",
    ]
    #expect(trace.current == preorder)
  }

  @Test func `a yielding coroutine lets all ready coroutines run, also those just launched`() throws {
    let trace = Locked<[String]>([])
    try co_launch(on: queue) {
      let first = co_launch {
        trace.withLock { $0.append("first") }
        try co_yield()
        trace.withLock { $0.append("first again") }
      }
      let second = co_launch { trace.withLock { $0.append("second") } }
      let third = co_launch { trace.withLock { $0.append("third") } }
      _ = try co_all([first, second, third])
    }
    .blockingWait()
    #expect(trace.current == ["first", "second", "third", "first again"])
  }

  @Test func `coroutines that launch their successors for ever do not starve an older one`() throws {
    let ran = Locked(false)
    let successors = Locked(0)
    try co_launch(on: queue) {
      // One after the other, so that the first is older than all jobs that the second launches.
      let second = co_launch { succeed(successors, until: ran) }
      co_launch { ran.withLock { $0 = true } }
      try second.join()
      while !ran.current { try co_yield() }
    }
    .blockingWait()
    #expect(successors.current < 1000)
  }

  @Test func `coroutines that yield to each other for ever do not starve one that has not started`() throws {
    let ran = Locked(false)
    let turns = try co_launch(on: queue) {
      let players = (0..<2).map { _ in
        co_launch {
          var turns = 0
          while !ran.current {
            turns += 1
            if turns == 100 { co_launch { ran.withLock { $0 = true } } }
            try co_yield()
          }
          return turns
        }
      }
      return try players.reduce(0) { try $0 + $1.join() }
    }
    .blockingWait()
    #expect(turns < 1000)
  }

  @Test func `coroutines that wake each other for ever do not starve one that has not started`() throws {
    let ran = Locked(false)
    let turns = try co_launch(on: queue) {
      let (there, back) = (Channel<Int>(), Channel<Int>())
      co_launch {
        while let turn = try there.receive() { try back.send(turn) }
      }
      var turns = 0
      while !ran.current, turns < 10_000 {
        turns += 1
        if turns == 100 { co_launch { ran.withLock { $0 = true } } }
        try there.send(turns)
        _ = try back.receive()
      }
      there.close()
      return turns
    }
    .blockingWait()
    #expect(turns < 1000)
  }

  @Test(arguments: [1, 2, 3, 4] as [UInt64])
  func `any order of pushes and pops agrees with a model`(seed: UInt64) throws {
    var random = seed
    var model: [JobRef] = []
    var batch: JobRef?
    var pops = 0
    var stack = LaunchStack()
    let jobs = (0..<200).map { _ in co_launch(on: queue, start: .lazy) {} }
    var free = jobs.map(\.record)
    for step in 0..<20_000 {
      random = random &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
      switch random >> 33 & 3 {
      case 0, 1:
        guard let job = free.popLast() else { continue }
        stack.push(job)
        let place = batch.flatMap { end in model.firstIndex { $0 == end } }
        model.insert(job, at: place.map { $0 + 1 } ?? 0)
        batch = job
      case let choice:
        let takesOldest = choice == 3 || pops % 32 == 31
        if choice == 2 {
          pops += 1
          try #require(stack.next == (takesOldest ? model.last : model.first), "seed \(seed), step \(step)")
        }
        let popped = choice == 2 ? stack.pop() : stack.popOldest()
        let expected = takesOldest ? model.popLast() : model.isEmpty ? nil : model.removeFirst()
        try #require(popped == expected, "seed \(seed), step \(step)")
        if !takesOldest || popped == batch { batch = nil }
        if let popped { free.append(popped) }
      }
      try #require(stack.count == model.count && stack.batchEnd == batch, "seed \(seed), step \(step)")
    }
    while let job = stack.pop() { model.removeAll { $0 == job } }
    #expect(model.isEmpty && stack.first == nil && stack.last == nil)
    // The records are stored in the jobs.
    withExtendedLifetime(jobs) {}
  }
}

private func visit(_ name: String, _ levels: Int, _ trace: Locked<[String]>) throws {
  trace.withLock { $0.append(name) }
  guard levels > 1 else { return }
  for child in (1...3).map({ index in co_launch { try visit("\(name)\(index)", levels - 1, trace) } }) {
    try child.join()
  }
}

private func succeed(_ count: Locked<Int>, until ran: Locked<Bool>) {
  guard !ran.current else { return }
  count.withLock { $0 += 1 }
  co_launch { succeed(count, until: ran) }
}
