import CCoroutine
import CTestSupport
import Glibc
import Testing

@testable import Coroutine

// Functions whose names the tests look for on stacks. Each does something after its call, so that it keeps its frame.

@inline(never)
private func innermostWait(_ gate: Gate, _ trace: Flag) throws {
  try gate.pass()
  trace.raise()
}

@inline(never)
private func middleCall(_ gate: Gate, _ trace: Flag) throws {
  try innermostWait(gate, trace)
  trace.raise()
}

@inline(never)
private func stepGenerator(_ gate: Gate, _ trace: Flag) throws -> Int {
  let generator = co_sequence(of: Int.self) { yield in
    try yield(1)
    try middleCall(gate, trace)
    try yield(2)
  }
  let sum = generator.reduce(0, +)
  trace.raise()
  return sum
}

/// The names of the frames of the coroutine with this number, the innermost first, once it waits.
private func names(of id: UInt64) async -> [String] {
  while true {
    let snapshot = CoroutineRuntime.snapshot(stacks: true)
    guard let entry = snapshot.coroutines.first(where: { $0.id == id }), entry.state == .waiting, !entry.isTorn else {
      await Task.yield()
      continue
    }
    return CoroutineRuntime.frames(at: entry.stack).map { $0.symbol ?? "" }
  }
}

/// The positions of the first names that contain each of `wanted`, if all are there.
private func positions(_ wanted: [String], in names: [String]) -> [Int]? {
  let found = wanted.compactMap { word in names.firstIndex { $0.contains(word) } }
  return found.count == wanted.count ? found : nil
}

/// Where parked coroutines are.
@Suite("Stacks of parked coroutines", .timeLimit(.minutes(10)), .enabled(if: !isSanitized))
struct StackTests {
  @Test func `a stack has the calls from the wait to the first function, by name`() async throws {
    let (gate, trace) = (Gate(), Flag())
    let job = co_launch { try middleCall(gate, trace) }
    let names = await names(of: job.id)
    gate.open()
    try await job.value
    let order = try #require(
      positions(["innermostWait", "middleCall", "StackRunner", "trampoline"], in: names),
      "\(names)"
    )
    #expect(order == order.sorted() && Set(order).count == order.count, "\(names)")
    #expect(names.last?.hasPrefix("trampoline") == true, "\(names)")
  }

  @Test func `a coroutine that waits in a generator's body has the body's frames and its own`() async throws {
    let (gate, trace) = (Gate(), Flag())
    let job = co_launch { try stepGenerator(gate, trace) }
    let names = await names(of: job.id)
    gate.open()
    #expect(try await job.value == 3)
    let order = try #require(
      positions(["innermostWait", "middleCall", "stepGenerator", "StackRunner"], in: names),
      "\(names)"
    )
    #expect(order == order.sorted(), "\(names)")
    // One first function for each of the two stacks.
    #expect(names.filter { $0.hasPrefix("trampoline") }.count == 2, "\(names)")
  }

  @Test func `a coroutine that runs or has not started has no stack, and is not torn`() async throws {
    try await onCoroutine(on: taggedQueue("stacks.own")) {
      let waiting = co_launch {}
      let own = CoroutineRuntime.snapshot(stacks: true, of: [QueueHost.current.unsafelyUnwrapped]).coroutines
      #expect(own.map(\.state).sorted { $0.rawValue < $1.rawValue } == [.notStarted, .running])
      #expect(own.allSatisfy { $0.stack.isEmpty && !$0.isTorn })
      try waiting.join()
    }
  }

  @Test func `a yielded coroutine has a stack`() async throws {
    try await onCoroutine(on: taggedQueue("stacks.yield")) {
      let yielding = co_launch {
        for _ in 0..<3 { try co_yield() }
      }
      try co_yield()
      let entries = CoroutineRuntime.snapshot(stacks: true, of: [QueueHost.current.unsafelyUnwrapped]).coroutines
      let entry = try #require(entries.first { $0.id == yielding.id })
      #expect(entry.state == .ready && !entry.stack.isEmpty)
      try yielding.join()
    }
  }

  @Test func `an address of no code has no name, and one of the C library has its image and build ID`() throws {
    let address = UInt(bitPattern: dlsym(nil, "qsort"))
    let frames = CoroutineRuntime.frames(at: [16, address + 4])
    #expect(frames.map(\.address) == [16, address + 4])
    #expect(frames[0].symbol == nil && frames[0].image == nil)
    #expect(frames[1].symbol == "qsort")
    #expect(frames[1].image?.contains("libc.so") == true)
    #expect(frames[1].buildID?.count == 40)
  }

  /// In a process of its own: a library that another test has loaded would stay.
  @Test func `an address of a library that was unloaded has no name any more`() async {
    await #expect(processExitsWith: .success) {
      // One that comes with the C library, and that no program links.
      let library = try #require(dlopen("libBrokenLocale.so.1", RTLD_NOW))
      let name = "__ctype_get_mb_cur_max"
      let address = UInt(bitPattern: dlsym(library, name)) + 1
      #expect(CoroutineRuntime.frames(at: [address])[0].symbol == name)
      #expect(dlclose(library) == 0)
      let frame = CoroutineRuntime.frames(at: [address])[0]
      #expect(frame.symbol == nil && frame.image == nil, "\(frame)")
    }
  }

  @Test func `stacks that are read beside wake-ups all the time are real ones`() async throws {
    let over = Flag()
    let (short, long) = (Channel<Int>(), Channel<Int>())
    let count = 200
    let waiters = (0..<count).map { _ in
      co_launch {
        while !over.isRaised {
          try shortPath(short, over)
          try longPath(long, over, 3)
        }
      }
    }
    let wakers = [short, long].map { channel in
      co_launch { while !over.isRaised { try channel.send(1) } }
    }
    let ids = Set(waiters.map(\.id))
    let (seen, torn, shapes) = try await onOwnThread {
      var (seen, torn) = (0, 0)
      var stacks: Set<[UInt]> = []
      var rounds = 0
      // Until so many were seen: the workers may be busy with other tests when this begins. Not for ever: nothing may
      // be seen at all.
      while rounds < 100 || seen < 5_000 && rounds < 100_000 {
        rounds += 1
        for entry in CoroutineRuntime.snapshot(stacks: true).coroutines where ids.contains(entry.id) {
          guard entry.wait?.kind == "receive" else { continue }
          seen += 1
          if entry.isTorn { torn += 1 } else { stacks.insert(entry.stack) }
        }
      }
      return (seen, torn, stacks.map { CoroutineRuntime.frames(at: $0).map { $0.symbol ?? "" } })
    }
    over.raise()
    for channel in [short, long] { channel.close() }
    for job in waiters + wakers { _ = try? await job.value }
    // About one of a hundred, and more where the machine stops in the middle of a walk.
    #expect(seen > 0 && torn * 10 <= seen, "\(torn) of \(seen)")
    for shape in shapes {
      let (shorts, longs) = (
        shape.filter { $0.contains("shortPath") }.count, shape.filter { $0.contains("longPath") }.count
      )
      #expect((shorts, longs) == (1, 0) || (shorts, longs) == (0, 4), "\(shape)")
      #expect(shape.last?.hasPrefix("trampoline") == true, "\(shape)")
    }
  }

  @Test func `a forked child reads the stacks of its parent's coroutines`() async {
    await #expect(processExitsWith: .success) {
      let (gate, trace) = (Gate(), Flag())
      let job = co_launch(name: "forked") { try middleCall(gate, trace) }
      while CoroutineRuntime.snapshot().coroutines.first?.state != .waiting { await Task.yield() }
      let code = try await onOwnThread {
        // A thread that runs may hold a lock of the loader or of the allocator.
        while !cts_may_fork() { sched_yield() }
        return cts_in_child(
          300,
          { _ in
            let entry = CoroutineRuntime.snapshot(stacks: true).coroutines.first { $0.name == "forked" }
            return (entry?.stack.count ?? 0) > 3 ? 0 : 1
          },
          nil
        )
      }
      #expect(code == 0)
      gate.open()
      try await job.value
    }
  }
}

@inline(never)
private func shortPath(_ channel: Channel<Int>, _ over: Flag) throws {
  let value = try channel.receive() ?? 0
  if value == 2 { over.raise() }
}

@inline(never)
private func longPath(_ channel: Channel<Int>, _ over: Flag, _ depth: Int) throws {
  let value = depth == 0 ? try channel.receive() ?? 0 : 1
  if depth > 0 { try longPath(channel, over, depth - 1) }
  if value == 2 { over.raise() }
}
