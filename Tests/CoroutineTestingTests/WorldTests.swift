import Coroutine
import Dispatch
import Glibc
import Synchronization
import Testing

@testable import CoroutineTesting

/// One world: virtual time, queues, the pool, blocking work, and what ends a run.
@Suite(.timeLimit(.minutes(10)))
struct WorldTests {
  @Test func `an hour passes at once, and to the nanosecond`() throws {
    let world = World()
    let log = Log()
    try world.run {
      let late = co_launch {
        try co_delay(.nanoseconds(3_600_000_000_001))
        log("late \(world.now)")
      }
      let early = co_launch {
        try co_delay(.seconds(3600))
        log("early \(world.now)")
      }
      try late.join()
      try early.join()
    }
    #expect(log.lines == ["early 3600.0 seconds", "late 3600.000000001 seconds"])
  }

  @Test func `coroutines of every queue run on the world's thread`() throws {
    let queues = [DispatchQueue(label: "one"), .main, .global(), DispatchQueue(label: "many", attributes: .concurrent)]
    let here = pthread_self()
    try World().run {
      for queue in queues {
        let job = co_launch(on: queue) {
          try co_switch(to: queues[0])
          return pthread_equal(pthread_self(), here) != 0
        }
        #expect(try job.join())
      }
      let blocking = try co_blocking { pthread_equal(pthread_self(), here) != 0 }
      #expect(blocking)
    }
  }

  @Test func `a promise's handlers run in the world`() throws {
    let seen = try World().run {
      let promise = Promise<Int>()
      let next = promise.then { number in number + 1 }.delay(.seconds(5))
      co_launch { promise.fulfill(1) }
      return try (co_await(next), World.current!.now)
    }
    #expect(seen.0 == 2)
    #expect(seen.1 == .seconds(5))
  }

  @Test func `the current world is that of the calling coroutine, and nil outside`() throws {
    #expect(World.current == nil)
    let world = World()
    try world.run { #expect(World.current === world) }
  }

  @Test func `a deadlock is reported with the coroutines that wait`() async {
    // In a process of its own: a dump of everything holds the jobs of other tests for a moment.
    await #expect(processExitsWith: .success) {
      let error = #expect(throws: World.DeadlockError.self) {
        try World().run {
          let channel = Channel<Int>()
          try co_launch(name: "consumer") { try channel.receive() }.join()
        }
      }
      #expect(error?.dump.contains("\"consumer\" waiting to receive") == true)
      #expect(CoroutineRuntime.dump().contains("consumer") == false, "it has unwound")
    }
  }

  @Test func `what the body leaves behind is reported, and unwinds`() throws {
    let unwound = Flag()
    let error = #expect(throws: World.LeftRunningError.self) {
      try World().run {
        _ = co_launch(name: "leaked") {
          defer { unwound.set(true) }
          try co_delay(.seconds(1))
        }
      }
    }
    #expect(error?.dump.contains("leaked") == true)
    #expect(unwound.isSet)
  }

  @Test func `the body's error is thrown`() throws {
    struct Wrong: Error {}
    #expect(throws: Wrong.self) { try World().run { throw Wrong() } }
  }

  @Test func `advancing lets time pass, and all that becomes ready run`() throws {
    let world = World()
    let log = Log()
    try world.run {
      let ticker = co_launch {
        while true {
          try co_delay(.seconds(1))
          try co_yield()
          log("tick \(world.now)")
        }
      }
      try world.advance(by: .seconds(2))
      log("advanced \(world.now)")
      ticker.cancel()
    }
    #expect(log.lines == ["tick 1.0 seconds", "tick 2.0 seconds", "advanced 2.0 seconds"])
  }

  @Test func `settling waits for what can run without time passing`() throws {
    let world = World()
    let log = Log()
    try world.run {
      co_launch {
        for number in 0..<3 {
          try co_yield()
          log("\(number)")
        }
      }
      let sleeper = co_launch {
        try co_delay(.seconds(1))
        log("late")
      }
      try world.settle()
      log("settled")
      try sleeper.join()
    }
    #expect(log.lines == ["0", "1", "2", "settled", "late"])
  }

  @Test func `advancing outside the world is refused`() {
    #expect(throws: CoroutineError.self) { try World().settle() }
  }

  @Test func `a wait for a descriptor is a real wait, unless it is declared`() throws {
    var ends: [Int32] = [0, 0]
    #expect(pipe(&ends) == 0)
    let (reader, writer) = (ends[0], ends[1])
    defer {
      close(reader)
      close(writer)
    }
    #expect(throws: World.RealWaitError.self) { try World().run { try co_untilReadable(reader) } }
    try World().run {
      let job = co_launch { try World.outside { try co_untilReadable(reader) } }
      try co_yield()
      var byte: UInt8 = 1
      write(writer, &byte, 1)
      try job.join()
    }
  }

  @Test func `blocking the world's thread is a real wait`() throws {
    #expect(throws: World.RealWaitError.self) {
      try World().run { try co_blocking { try co_launch { 1 }.blockingWait() } }
    }
    #expect(throws: World.RealWaitError.self) {
      try World().run { try co_launch { 1 }.blockingWait() }
    }
    #expect(throws: World.RealWaitError.self) {
      try World().run { try co_blocking { try Promise<Int>().blockingWait() } }
    }
  }

  @Test func `a cancelled blocking body runs, or does not run, as the order decides`() throws {
    var seen: Set<Bool> = []
    for seed in 0..<20 as Range<UInt64> {
      let hasRun = Flag()
      try World(seed: seed).run {
        let job = co_launch { try co_blocking { hasRun.set() } }
        co_launch { job.cancel() }
        _ = try? job.join()
      }
      seen.insert(hasRun.isSet)
    }
    #expect(seen == [true, false])
  }

  @Test func `a seed decides the order, and the same seed repeats it`() throws {
    func order(_ seed: UInt64?) throws -> [String] {
      let log = Log()
      try World(seed: seed).run {
        try co_scope { scope in
          for number in 0..<8 {
            scope.launch {
              for step in 0..<4 {
                log("\(number).\(step)")
                try co_yield()
              }
            }
          }
        }
      }
      return log.lines
    }
    #expect(try order(nil).prefix(8) == (0..<8).map { "\($0).0" }[...])
    var orders: Set<[String]> = []
    for seed in 1...5 as ClosedRange<UInt64> {
      let once = try order(seed)
      #expect(try order(seed) == once)
      orders.insert(once)
    }
    #expect(orders.count == 5)
  }

  @Test func `worlds that run at the same time on several threads do not see each other`() async throws {
    struct Stranger: Error {}
    struct Seen: Equatable, Sendable {
      var fingerprint: UInt64
      var lines: [String]
    }
    let queue = DispatchQueue(label: "the same in every world")
    /// `meet` is called in the world, before its coroutines begin.
    @Sendable func run(_ seed: UInt64, _ meet: @escaping @Sendable () -> Void) throws -> Seen {
      let (world, log) = (World(seed: seed), Log())
      try world.run {
        meet()
        let lock = FairMutex()
        try co_scope { scope in
          for number in 0..<6 {
            scope.launch(on: number % 2 == 0 ? queue : nil) {
              for step in 0..<20 {
                try lock.withLock { try co_delay(.milliseconds(step + 1)) }
                try co_blocking {}
                guard World.current === world else { throw Stranger() }
                log("\(number).\(step) at \(world.now)")
              }
            }
          }
        }
      }
      return Seen(fingerprint: world.fingerprint, lines: log.lines)
    }
    let alone = try (0..<8).map { try run($0) {} }
    #expect(Set(alone.map(\.fingerprint)).count == 8)
    let (arrived, all) = (Counter(), Flag())
    // Results come back through the group: ThreadSanitizer does not see `Mutex` on Linux.
    let together = try await withThrowingTaskGroup(of: (UInt64, Seen).self) { group in
      for seed in 0..<8 as Range<UInt64> {
        group.addTask {
          try await onOwnThread {
            let seen = try run(seed) {
              if arrived.next() == 8 { all.set() }
              while !all.isSet { sched_yield() }
            }
            return (seed, seen)
          }
        }
      }
      return try await group.reduce(into: [:]) { bySeed, result in bySeed[result.0] = result.1 }
    }
    #expect((0..<8).compactMap { together[$0] } == alone)
  }

  @Test func `a queue runs first in, first out, whatever the seed`() throws {
    let queue = DispatchQueue(label: "serial")
    for seed in 0..<20 as Range<UInt64> {
      let log = Log()
      try World(seed: seed).run {
        let jobs = (0..<4).map { number in
          co_launch(on: queue) {
            log("\(number)")
            co_point()
            log("\(number)")
          }
        }
        for job in jobs { try job.join() }
      }
      #expect(log.lines == ["0", "0", "1", "1", "2", "2", "3", "3"])
    }
  }

  @Test func `a coroutine whose waits need not wait does not keep others from running`() throws {
    try World().run {
      let lock = FairMutex()
      let isDone = Flag()
      co_launch { isDone.set(true) }
      while !isDone.isSet { try lock.withLock {} }
      co_launch { isDone.set(false) }
      while isDone.isSet { co_point() }
    }
  }

  @Test func `a coroutine that catches its cancellation for ever is left running`() throws {
    let error = #expect(throws: World.LeftRunningError.self) {
      try World().run {
        _ = co_launch(name: "stubborn") { while true { try? co_delay(.seconds(1)) } }
        try co_delay(.seconds(3))
      }
    }
    #expect(error?.dump.contains("stubborn") == true)
    #expect(throws: World.LeftRunningError.self) {
      try World().run {
        let job = co_launch { while true { try? co_yield() } }
        try co_yield()
        job.cancel()
        try co_delay(.seconds(1))
      }
    }
  }

  @Test func `points and faults do nothing outside a world`() throws {
    co_point()
    #expect(!co_fault("disk"))
    #expect(try World().run { co_fault("disk") } == false)
  }

  @Test func `a world within a world's coroutine is one of its own`() throws {
    let inner = try World().run {
      try co_delay(.seconds(1))
      return try World().run {
        try co_delay(.seconds(2))
        return World.current!.now
      }
    }
    #expect(inner == .seconds(2))
  }
  @Test func `waits that end together end in the order in which they began, however far ahead that was`() throws {
    // Moments whose distances from the end lie in different levels of a timer wheel, several waits at each.
    let moments = [0, 1, 2_000_000_000, 3_599_000_000_000, 3_599_999_000_000, 3_599_999_900_000, 3_599_999_999_999]
    let end = Duration.seconds(3600)
    let log = Log()
    let world = World()
    try world.run {
      let jobs = moments.enumerated().flatMap { index, moment in
        (0..<5).map { number in
          co_launch {
            try co_delay(.nanoseconds(moment))
            try co_delay(end - world.now)
            log("\(index).\(number)")
          }
        }
      }
      for job in jobs { try job.join() }
      #expect(world.now == end)
    }
    #expect(log.lines == moments.indices.flatMap { index in (0..<5).map { "\(index).\($0)" } })
  }

  @Test func `calls of timers that end together are made in the order of their starts`() throws {
    let log = Log()
    try World().run {
      let world = try #require(World.current)
      for (number, moment) in [0, 1, 59, 60].enumerated() {
        try co_delay(.seconds(moment) - world.now)
        // Both kinds of timers: a promise's, and a coroutine's.
        _ = Promise<Void>.after(.seconds(100) - world.now).then { log("after \(number)") }
        co_launch {
          try co_delay(.seconds(100) - world.now)
          log("delay \(number)")
        }
        try world.settle()
      }
      try co_delay(.seconds(100))
    }
    #expect(log.lines.filter { $0.hasPrefix("after") } == (0..<4).map { "after \($0)" })
    #expect(log.lines.filter { $0.hasPrefix("delay") } == (0..<4).map { "delay \($0)" })
  }

  @Test func `a queue that only the world holds keeps its address, so that no other queue is taken for it`() throws {
    final class Weak: @unchecked Sendable {
      // Sound because one thread uses it.
      weak var queue: DispatchQueue?
    }
    let first = Weak()
    try World().run {
      for number in 0..<10 {
        let queue = DispatchQueue(label: "passing")
        try co_launch(on: queue) {}.join()
        if number == 0 { first.queue = queue }
      }
      #expect(first.queue != nil)
    }
    #expect(first.queue == nil)
  }

  /// A run may reach its limit of steps when a coroutine has just left its stack at a point, and another one is chosen.
  @Test func `a run that fails at a point ends every coroutine, also the one that was chosen there`() throws {
    let (begun, ended) = (Counter(), Counter())
    let body: @Sendable () throws -> Void = {
      _ = begun.next()
      defer { _ = ended.next() }
      while true {
        co_point()
        try co_yield()
      }
    }
    for seed in 0..<20 as Range<UInt64> {
      let policy = RunPolicy(RandomChooser(seed: seed))
      #expect(throws: World.TimeLimitError.self) {
        try World(seed: seed).run(policy, seed: seed, isTraced: false, mostSteps: 50) {
          for _ in 0..<3 { co_launch(body) }
          try body()
        }
      }
    }
    #expect(begun.next() == ended.next())
  }
}
