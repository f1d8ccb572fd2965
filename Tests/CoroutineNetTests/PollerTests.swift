import CTestSupport
import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// The pollers of workers, and who takes their events.
@Suite("Pollers of workers", .timeLimit(.minutes(10)))
struct PollerTests {
  /// A pool lives for ever, as the shared one does.
  private static func ownWorkers(_ label: String, _ count: Int) -> WorkerPool {
    Unmanaged.passRetained(WorkerPool(count: count, label: "coroutine.tests.\(label)")).takeUnretainedValue()
  }

  /// A coroutine that waits to read a byte, and the worker in whose poller it waits.
  private struct Reader: Sendable {
    let job: Job<[UInt8]>
    let writer: Connection
    let worker: Scheduler

    init(in pool: WorkerPool) async throws {
      let (one, other) = try Connection.pair()
      job = co_launch(on: pool.workers[0].currentQueue) { try one.read(upTo: 1) }
      while !one.socket.isAwaited(.reading) { await Task.yield() }
      writer = other
      worker = try #require(
        pool.workers.first { $0.asWorker { $0.poller.load(ordering: .relaxed) } == one.watchingPoller }
      )
    }

    func write() {
      writer.withUnsafeDescriptor { _ = Glibc.send($0, [7], 1, Int32(MSG_NOSIGNAL)) }
    }
  }

  /// Runs `body` in a coroutine on this worker and no other.
  private func run(on worker: Scheduler, _ body: @escaping @Sendable () -> Void) async throws {
    while true {
      // Another worker may have stolen it.
      let isThere = try await co_launch(on: worker.currentQueue) {
        guard worker.isRunningHere else { return false }
        body()
        return true
      }
      .value
      if isThere { return }
    }
  }

  @Test func `the worker that first waits for a descriptor watches it, and for a queue the thread does`() async throws {
    let pool = Self.ownWorkers("home", 2)
    #expect(pool.workers.allSatisfy { !$0.hasPoller })
    let reader = try await Reader(in: pool)
    // All at once, so the number of descriptors does not grow later.
    #expect(pool.workers.allSatisfy { $0.hasPoller })
    reader.write()
    #expect(try await reader.job.value == [7])

    let (one, other) = try Connection.pair()
    let onQueue = co_launch(on: DispatchQueue(label: "queue")) { try one.read(upTo: 1) }
    while !one.socket.isAwaited(.reading) { await Task.yield() }
    let thread = try Poller.shared()
    #expect(one.watchingPoller == UInt(bitPattern: Unmanaged.passUnretained(thread).toOpaque()))
    try await onCoroutine { try other.write([1]) }
    #expect(try await onQueue.value == [1])
  }

  @Test func `a closed descriptor is no longer counted, and one for both directions is counted once`() async throws {
    let pool = Self.ownWorkers("count", 1)
    try await co_launch(on: pool.workers[0].currentQueue) {
      let (one, other) = try Connection.pair()
      _ = try one.fill()
      let reader = co_launch { try? one.read(upTo: 1) }
      let writer = co_launch { try? one.write([1]) }
      try one.untilAwaited(.reading)
      try one.untilAwaited(.writing)
      #expect(pool.watchedDescriptors == 1)
      one.close()
      _ = try (reader.join(), writer.join())
      #expect(pool.watchedDescriptors == 0)
      other.close()
    }
    .value
  }

  // Each coroutine lets the other one arrive, for a while and without a suspension, so that they often add at once.
  @Test func `a descriptor that two workers add at once is counted once`() async throws {
    let pool = Self.ownWorkers("twice", 2)
    for _ in 0..<Run().rounds(1_000) {
      let (one, other) = try Connection.pair()
      let arrived = Locked(0)
      let adders = pool.workers.map { worker in
        co_launch(on: worker.currentQueue) {
          arrived.withLock { $0 += 1 }
          for _ in 0..<10_000 where arrived.current < 2 {}
          try one.socket.watch()
        }
      }
      for adder in adders { try await adder.value }
      #expect(pool.watchedDescriptors == 1)
      one.close()
      other.close()
      #expect(pool.watchedDescriptors == 0)
    }
  }

  // The only worker never goes to sleep, so the coroutine waits for the look at the beginning of a drain.
  @Test func `a worker that is always busy looks at its descriptors`() async throws {
    let pool = Self.ownWorkers("busy", 1)
    // Stops the watchdog before it starts: it would take the event if the worker's thread stopped for some time.
    pool.watching.store(true, ordering: .relaxed)
    let reader = try await Reader(in: pool)
    let (isBusy, isOver) = (Locked(false), Locked(false))
    let busy = co_launch(on: pool.workers[0].currentQueue) {
      isBusy.withLock { $0 = true }
      while !isOver.current { try co_yield() }
    }
    while !isBusy.current { await Task.yield() }
    reader.write()
    #expect(try await reader.job.value == [7])
    isOver.withLock { $0 = true }
    try await busy.value
  }

  @Test func `a coroutine that computes does not keep a ready one of its worker waiting`() async throws {
    let pool = Self.ownWorkers("computes", 2)
    let reader = try await Reader(in: pool)
    let seen = Locked(false)
    try await run(on: reader.worker) {
      reader.write()
      let limit = ContinuousClock.now + .seconds(60)
      while !reader.job.isFinished, ContinuousClock.now < limit {}
      seen.withLock { $0 = reader.job.isFinished }
    }
    #expect(seen.current)
    #expect(try await reader.job.value == [7])
  }

  @Test func `workers that are all blocked in system calls do not keep a ready coroutine waiting`() async throws {
    let pool = Self.ownWorkers("blocked", 2)
    let reader = try await Reader(in: pool)
    let (end, blocked) = (try pipe(), Latch(2))
    var blockers: [Job<Int>] = []
    for worker in pool.workers {
      blockers.append(
        co_launch(on: worker.currentQueue) {
          blocked.countDown()
          var byte: UInt8 = 0
          return read(end.reader, &byte, 1)
        }
      )
    }
    try await onCoroutine { try blocked.wait() }
    reader.write()
    // Nothing but the reader's end lets the workers go on.
    #expect(try await reader.job.value == [7])
    _ = Glibc.write(end.writer, [0, 0], 2)
    for blocker in blockers { #expect(try await blocker.value == 1) }
    close(end.reader)
    close(end.writer)
  }

  // The worker sleeps on its word, because it had no poller yet.
  @Test func `a worker watches for a spare worker's coroutine, and is woken for that`() async throws {
    let pool = Self.ownWorkers("spare", 1)
    // The watchdog also looks for spare workers, and would move a job whose thread starts late.
    pool.watching.store(true, ordering: .relaxed)
    let spare = try #require(pool.spareWorker())
    let (one, other) = try Connection.pair()
    try await co_launch(on: pool.workers[0].currentQueue) {}.value
    while !pool.workers[0].inbox.isIdle { await Task.yield() }
    var reader: Job<[UInt8]?>
    repeat {
      reader = co_launch(on: spare.currentQueue) {
        // The worker has stolen it: it sleeps only after a last look for work.
        guard spare.isRunningHere else { return nil }
        return try co_timeout(.seconds(60)) { try one.read(upTo: 1) }
      }
      while !one.socket.isAwaited(.reading), !reader.isFinished { await Task.yield() }
    } while reader.isFinished
    #expect(one.watchingPoller == pool.workers[0].asWorker { $0.poller.load(ordering: .relaxed) })
    try await onCoroutine { try other.write([7]) }
    #expect(try await reader.value == [7])
  }

  @Test func `who takes the wake-up event for the owner gives it back`() async throws {
    let poller = try Poller()
    // The event of adding it.
    poller.take(waiting: 0)
    poller.deliver()
    poller.watched.store(1, ordering: .relaxed)
    poller.wakeUp()
    poller.takeForOwner()
    poller.take(waiting: 0)
    #expect(poller.taken == 1)
    poller.deliver()
    poller.take(waiting: 0)
    #expect(poller.taken == 0)
  }

  @Test func `a take ends with its time, in nanoseconds`() throws {
    let poller = try Poller()
    poller.take(waiting: 0)
    // The thread may stop for any time, but not each time. Whole milliseconds, which older kernels have, take longer.
    let isFine = cts_has_fine_waits()
    var took = UInt64.max
    repeat {
      let began = Clock.now
      poller.take(waiting: 300_000)
      took = Clock.now - began
      #expect(poller.taken == 0)
      #expect(took >= 300_000)
    } while isFine && took >= 1_000_000
  }

  @Test func `a kernel that says too early that the time is over is not believed`() async {
    await #expect(processExitsWith: .success) {
      precondition(cts_pretend(UInt32(CTS_FINE_WAITS_END_AT_ONCE)) == 0)
      let poller = try Poller()
      poller.take(waiting: 0)
      for _ in 0..<3 {
        let began = Clock.now
        poller.take(waiting: 2_500_000)
        #expect(Clock.now - began >= 2_500_000)
      }
    }
  }

  @Test(arguments: [1, 300_000, 10_000_000, 10_000_001, 3_600_000_000_000, UInt64.max])
  func `a long sleep before a timer is cut short by more than the kernel adds`(_ time: UInt64) {
    var (left, parts) = (time, 0)
    while left > 0 {
      let part = UInt64(WorkerHost.cutShort(left))
      #expect(part > 0 && part <= left)
      parts += 1
      if part == left {
        // So short that the kernel's lateness does not matter.
        #expect(left <= 10_000_000)
        break
      }
      // The kernel ends a wait late by up to 0.5 % of it.
      let late = part + part / 200
      #expect(late < left)
      left -= min(left, late)
    }
    // An hour is slept in four parts.
    #expect(parts <= (time == .max ? 8 : 4))
  }

  @Test func `two workers that add one descriptor at once count it once`() throws {
    let run = Run()
    let poller = try Poller()
    for _ in 0..<run.rounds(20_000) {
      let (one, other) = try Connection.pair()
      one.socket.poller.store(UInt(bitPattern: Unmanaged.passUnretained(poller).toOpaque()), ordering: .releasing)
      DispatchQueue.concurrentPerform(iterations: 2) { _ in
        do { try one.socket.watch() } catch { Issue.record("\(error)") }
      }
      #expect(poller.watched.load(ordering: .relaxed) == 1)
      one.close()
      #expect(poller.watched.load(ordering: .relaxed) == 0)
      other.close()
    }
  }

  @Test func `an error of epoll_wait that no retry would end is a trap with a sentence`() async throws {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let poller = try Poller()
      poller.take(waiting: 0)
      // As if its number was closed and given to another file, in one step: no other thread gets it in between.
      dup2(STDERR_FILENO, poller.epoll)
      poller.take(waiting: 0)
    }
    let text = String(decoding: try #require(died).standardErrorContent, as: UTF8.self)
    // An optimised build prints no sentence.
    #if DEBUG
    #expect(text.contains("foreign code has closed descriptors"), "\(text)")
    #else
    #expect(!text.contains("Issue"))
    #endif
  }

  @Test func `no submission to a worker that sleeps in its poller is lost, whoever takes its events`() async throws {
    let run = Run()
    let pool = Self.ownWorkers("submissions", 1)
    let reader = try await Reader(in: pool)
    let isOver = Atomic<Bool>(false)
    // A watchdog that is always there.
    let watchdog = Promise<Void>()
    DispatchQueue(label: "watchdog").async {
      while !isOver.load(ordering: .relaxed) {
        reader.worker.ownPoller?._withUnsafeGuaranteedRef { $0.takeForOwner() }
      }
      watchdog.fulfill(())
    }
    let sent = Promise<Void>()
    DispatchQueue(label: "sender").async {
      do {
        for round in 0..<run.rounds(50_000) {
          let job = co_launch(on: reader.worker.currentQueue) {
            if round % 16 == 0 { try co_delay(.microseconds(round % 100)) }
          }
          try job.blockingWait()
        }
        sent.fulfill(())
      } catch {
        sent.reject(error)
      }
    }
    try await sent.value
    isOver.store(true, ordering: .relaxed)
    try await watchdog.value
    reader.write()
    #expect(try await reader.job.value == [7])
  }

  private func pipe() throws -> (reader: Int32, writer: Int32) {
    var ends: [Int32] = [-1, -1]
    try #require(Glibc.pipe(&ends) == 0)
    return (ends[0], ends[1])
  }
}

extension Connection {
  /// The address of the poller that watches the descriptor; 0 before the first wait.
  fileprivate var watchingPoller: UInt { socket.poller.load(ordering: .relaxed) }
}

extension WorkerPool {
  /// The number of descriptors that the workers watch.
  fileprivate var watchedDescriptors: Int {
    workers.reduce(0) { count, worker in
      count + (worker.ownPoller?._withUnsafeGuaranteedRef { $0.watched.load(ordering: .relaxed) } ?? 0)
    }
  }
}
