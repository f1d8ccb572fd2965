import CTestSupport
import Dispatch
import Foundation
import Glibc
import Synchronization
import Testing

@testable import Coroutine

@Suite("A thread of the worker pool", .timeLimit(.minutes(10)))
struct WorkerThreadTests {
  @Test func `has a name that says so`() async throws {
    let name = try await onCoroutine { threadName() }
    #expect(name.hasPrefix("co-worker-"))
  }

  // The shell's `ulimit -s` sets what this sets here.
  @Test func `has a stack of 8 MiB, whatever the usual size is`() async {
    await #expect(processExitsWith: .success) {
      #expect(setUsualStackSize(100 << 10) == 0)
      let size = try await onCoroutine { stackSize() }
      #expect(size == 8 << 20 || size == 8 << 20 + 64 << 10)
    }
  }

  /// The first use is by a thread that computes with another rounding, on one processor.
  @Test func `has nothing of what the first user of the runtime had set for itself`() async {
    await #expect(processExitsWith: .success) {
      let (roundings, counts) = try synchronously { () -> ([Int32], [Int?]) in
        fesetround(0x800)  // FE_UPWARD on x86-64; a no-op elsewhere
        #expect(cts_keep_thread_on_processor() == 0)
        let job = co_launch {
          let called = try co_blocking { (fegetround(), try processorsOfThread()) }
          return ([fegetround(), called.0], [try processorsOfThread(), called.1])
        }
        let (roundings, counts) = try job.blockingWait()
        // On a stack that this thread makes.
        let immediate = try co_launch(start: .immediate) { fegetround() }.blockingWait()
        return (roundings + [immediate], counts)
      }
      #expect(roundings == [0, 0, 0])
      // The main thread's.
      let all = Processors.allowed(status: try String(contentsOfFile: "/proc/self/status", encoding: .utf8))
      #expect(counts == [all, all])
    }
  }

  @Test func `starts with the first coroutine of its worker`() async throws {
    let pool = ownWorkers("lazy")
    #expect(pool.workers.map(hasThread) == [false, false])
    try await onCoroutine(on: pool.workers[0].currentQueue) {}
    #expect(hasThread(pool.workers[0]))
  }

  @Test func `runs every coroutine of its worker, and no other thread does but a spare worker's`() async throws {
    let pool = ownWorkers("one", count: 1)
    let threads = Locked<Set<pthread_t>>([])
    var jobs: [Job<Void>] = []
    for _ in 0..<100 {
      jobs.append(
        co_launch(on: pool.workers[0].currentQueue) {
          for _ in 0..<10 {
            threads.withLock { _ = $0.insert(pthread_self()) }
            try co_delay(.microseconds(50))
          }
        }
      )
    }
    for job in jobs { try await job.value }
    // On a machine that others use too, the thread may wait so long for a processor that a spare worker helps.
    #expect(threads.current.count <= 1 + pool.spares.count)
  }

  /// Where a worker without work sleeps: on its word, or in its poller if a coroutine has waited for a descriptor.
  enum Bed: CaseIterable { case word, poller }

  private func workers(_ label: String, sleepingIn bed: Bed) async throws -> WorkerPool {
    let pool = ownWorkers(label)
    if bed == .poller {
      let pipe = PipePair()
      let waiter = co_launch(on: pool.workers[0].currentQueue) { try co_untilReadable(pipe.reader) }
      while !waiter.record.seemsWaiting { await Task.yield() }
      pipe.put()
      try await waiter.value
    }
    #expect(pool.workers.map(\.hasPoller) == (bed == .poller ? [true, true] : [false, false]))
    return pool
  }

  @Test(.tags(.realClock), arguments: Bed.allCases)
  func `wakes for a timer although nobody sends anything`(_ bed: Bed) async throws {
    let pool = try await workers("timers", sleepingIn: bed)
    for _ in 0..<50 { try await co_launch(on: pool.workers[0].currentQueue) { try co_delay(.microseconds(300)) }.value }
  }

  @Test(.tags(.realClock), arguments: Bed.allCases)
  func `wakes for an earlier timer than the one it sleeps for`(_ bed: Bed) async throws {
    let pool = try await workers("earlier", sleepingIn: bed)
    let late = co_launch(on: pool.workers[0].currentQueue) { try co_delay(.seconds(3600)) }
    let early = co_launch(on: pool.workers[0].currentQueue) { try co_delay(.milliseconds(1)) }
    try await early.value
    late.cancel()
    await #expect(throws: CancellationError.self) { _ = try await late.value }
  }

  @Test func `takes the signals that a dispatch worker takes, and SIGURG, by which it is asked where it stalls`()
    async throws
  {
    let mine = try await onCoroutine { blockedSignals() }
    let workers = try await onBlock(of: .global()) { blockedSignals() }
    #expect(mine == workers.subtracting([SIGURG]))
    #expect(workers.contains(SIGURG))
  }

  @Test func `a blocking wait on it would block its coroutines, and throws`() async throws {
    let worker = ownWorkers("blocked", count: 1).workers[0]
    // On a crowded machine a spare worker may take the handler or the coroutines over, where blocking would block
    // nobody. Then again.
    var text: String?
    while text == nil {
      text = try await onCoroutine(on: worker.currentQueue) {
        let said = Promise<String?>()
        let other = co_launch { try co_delay(.seconds(3600)) }
        defer { other.cancel() }
        // A coroutine that waits is not taken over any more.
        while !other.record.seemsWaiting { try co_yield() }
        let isOwn = other.record.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0 === worker }
        // A handler runs outside of coroutines, on the thread.
        _ = Promise.value(1).tap { _ in
          said.fulfill(isOwn && worker.isRunningHere ? outcome { try other.blockingWait() } : nil)
        }
        return try co_await(said)
      }
    }
    #expect(text?.contains("wouldDeadlock") == true)
  }
}

private func hasThread(_ worker: Scheduler) -> Bool { (worker.host as? WorkerHost)?.hasThread ?? false }

/// Sets the stack size of threads that ask for none. (Swift's module of the C library does not have the function.)
private func setUsualStackSize(_ size: Int) -> Int32 {
  typealias Set = @convention(c) (UnsafePointer<pthread_attr_t>) -> Int32
  guard let symbol = dlsym(nil, "pthread_setattr_default_np") else { return -1 }
  return withUnsafeTemporaryAllocation(of: pthread_attr_t.self, capacity: 1) { attributes in
    guard let first = attributes.baseAddress else { return -1 }
    pthread_attr_init(first)
    defer { pthread_attr_destroy(first) }
    pthread_attr_setstacksize(first, size)
    return unsafeBitCast(symbol, to: Set.self)(first)
  }
}

/// The number of processors on which the calling thread may run.
private func processorsOfThread() throws -> Int? {
  Processors.allowed(status: try String(contentsOfFile: "/proc/thread-self/status", encoding: .utf8))
}
