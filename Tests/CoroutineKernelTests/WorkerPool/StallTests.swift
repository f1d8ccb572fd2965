import CLinux
import CTestSupport
import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

/// What a stall is, and what is none: the reports of CoroutineRuntime.onStall.
///
/// Each in a process of its own, because the handler is the process's. The watchdog looks at the workers by the real
/// clock.
@Suite("A stall", .timeLimit(.minutes(10)), .tags(.realClock))
struct StallTests {
  @Test func `of a coroutine that computes is reported as that`() async {
    await #expect(processExitsWith: .success) {
      let reports = Reports(after: .milliseconds(20))
      let isOver = Flag()
      co_launch(name: "hog") { while !isOver.isRaised {} }
      let stall = reports.first()
      isOver.raise()
      check(
        stall.activity == .computing,
        stall.coroutine?.contains("hog") == true,
        stall.duration > .milliseconds(20),
        stall.description.contains(" ms without a suspension, computing: let long computations call co_yield")
      )
    }
  }

  @Test func `of a read that blocks is reported with the name of the call`() async {
    await #expect(processExitsWith: .success) {
      let reports = Reports(after: .milliseconds(20))
      let job = co_launch(name: "reader") { blockInRead() }
      let stall = reports.first()
      check(
        stall.activity == .systemCall("read"),
        stall.coroutine?.contains("reader") == true,
        stall.description.hasSuffix("without a suspension, in read(2): move blocking calls into co_blocking"),
        !job.isFinished
      )
    }
  }

  @Test func `of a lock that blocks threads says so`() async {
    await #expect(processExitsWith: .success) {
      let reports = Reports(after: .milliseconds(20))
      let (lock, isHeld, isOver) = (Locked(0), DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
      startThread {
        lock.withLock { _ in
          isHeld.signal()
          isOver.wait()
        }
      }
      isHeld.wait()
      let job = co_launch(name: "locker") { lock.withLock { $0 += 1 } }
      let stall = reports.first()
      check(
        stall.activity == .systemCall("futex"),
        stall.coroutine?.contains("locker") == true,
        stall.description.contains("in futex(2): a lock that blocks threads, perhaps a `static let`")
      )
      isOver.signal()
      try await job.value
    }
  }

  /// Swift's lock of a `static let` belongs to the thread that began its initial value, which the wait has left.
  ///
  /// On another thread it sleeps, on the same one it spins: sanitizers do not let the thread be asked which.
  @Test(.enabled(if: !isSanitized), arguments: [true, false])
  func `of a static let whose initial value waits says so`(_ isOnOtherThread: Bool) async {
    await #expect(processExitsWith: .success) { [isOnOtherThread] in
      ThreadStack.patience.store(30_000_000_000, ordering: .relaxed)
      let pool = ownWorkers("static let")
      let (worker, place) = (pool.workers[0], pool.workers[isOnOtherThread ? 1 : 0])
      let isThere = Flag()
      let first = co_launch(on: worker.currentQueue, name: "first") {
        try go(to: worker)
        isThere.raise()
        return Waiting.value
      }
      while !isThere.isRaised || !first.record.seemsWaiting { sched_yield() }
      let reports = Reports(after: .milliseconds(20))
      co_launch(on: place.currentQueue, name: "second") {
        try go(to: place)
        return Waiting.value
      }
      let stall = reports.first()
      check(
        stall.coroutine?.contains("second") == true,
        stall.activity == (isOnOtherThread ? .systemCall("futex") : .computing),
        stall.description.contains(
          "\(stall.activity), in swift_once: it wants a `static let` or a global whose initialiser waits"
        ),
        stall.description.contains("Once")
      )
    }
  }

  @Test(.enabled(if: !isSanitized)) func `of an initial value that is computed is that of a computation`() async {
    await #expect(processExitsWith: .success) {
      let reports = Reports(after: .milliseconds(20))
      co_launch(name: "first") { Computed.value }
      let stall = reports.first()
      Computed.isOver.raise()
      check(stall.activity == .computing, !stall.description.contains("swift_once"))
    }
  }

  @Test func `of many short sleeps is reported with the call`() async {
    await #expect(processExitsWith: .success) {
      let reports = Reports(after: .milliseconds(50))
      let isOver = Flag()
      co_launch(name: "sleeper") { while !isOver.isRaised { RealClock.block(for: .milliseconds(2)) } }
      let stall = reports.first()
      isOver.raise()
      // aarch64 has ppoll alone.
      check(
        [.systemCall("poll"), .systemCall("ppoll")].contains(stall.activity),
        stall.coroutine?.contains("sleeper") == true
      )
    }
  }

  @Test func `of a Task names the call as well`() async {
    await #expect(processExitsWith: .success) {
      let reports = Reports(after: .milliseconds(20))
      Task(executorPreference: WorkerPoolExecutor.shared) { blockInRead() }
      let stall = reports.first()
      check(
        stall.isTask,
        stall.coroutine == nil,
        stall.activity == .systemCall("read"),
        stall.description.contains("in read(2): await the value of a coroutine that calls co_blocking")
      )
    }
  }

  // MARK: A loaded machine

  /// The worker runs only when nothing else wants the processor that all threads share: it could run, and cannot.
  @Test func `is not what a coroutine does that only gets no processor`() async {
    await #expect(processExitsWith: .success) {
      check(cts_use_one_processor() == 0)
      let threshold = Duration.milliseconds(10)
      let reports = Reports(after: threshold)
      let worker = ownWorkers("starved", count: 1).workers[0]
      let (isStarved, isOver) = (Flag(), Flag())
      let innocent = co_launch(on: worker.currentQueue, name: "innocent") {
        check(cts_run_when_idle() == 0)
        isStarved.raise()
        while !isOver.isRaised { try co_yield() }
      }
      while !isStarved.isRaised { sched_yield() }
      for _ in 0..<4 { startThread { while !isOver.isRaised {} } }
      // Three times it has not looked at its clock for five times the threshold.
      for _ in 0..<3 {
        var (read, since) = (worker.lastClockRead.load(ordering: .relaxed), Clock.now)
        while Clock.now - since < 50_000_000 {
          RealClock.block(for: .milliseconds(1))
          let now = worker.lastClockRead.load(ordering: .relaxed)
          if now != read { (read, since) = (now, Clock.now) }
        }
      }
      check(reports.all.isEmpty)
      isOver.raise()
      try await innocent.value
    }
  }

  @Test func `of a coroutine that shares its processor is measured by its own time`() async {
    await #expect(processExitsWith: .success) {
      check(cts_use_one_processor() == 0)
      let reports = Reports(after: .milliseconds(20))
      let isOver = Flag()
      for _ in 0..<3 { startThread { while !isOver.isRaised {} } }
      let used = co_launch(name: "hog") {
        // Without the lock of the reports: a sleep in it would count as well.
        let start = Clock.ofThread
        while !isOver.isRaised {}
        return Clock.ofThread - start
      }
      let stall = reports.first()
      isOver.raise()
      let most = Duration.nanoseconds(Int64(try await used.value))
      check(stall.activity == .computing, stall.duration > .milliseconds(20), stall.duration <= most)
    }
  }

  /// What shares one worker, each part short.
  ///
  /// A worker looks at its clock only once in some jobs, if the jobs were short before.
  enum Crowd: String, CaseIterable, Codable {
    case coroutines, yielding, pingPong, lastOfMany, tasks

    /// Does short parts while `isLong` is false, then 64 of 3 ms.
    func run(on pool: WorkerPool, _ isLong: Flag) async throws {
      let queue = pool.workers[0].currentQueue
      switch self {
      case .coroutines:
        try await Self.launchParts(on: pool, isLong, 64) { _ in spin(3) }
      case .lastOfMany:
        // The last part is longer than the others, and shorter than a stall.
        try await Self.launchParts(on: pool, isLong, 32) { spin($0 == 31 ? 25 : 3) }
      case .yielding:
        try await co_launch(on: queue) {
          while !isLong.isRaised { try co_yield() }
          for _ in 0..<64 {
            spin(3)
            try co_yield()
          }
        }.value
      case .pingPong:
        let (ball, back) = (Channel<Bool>(), Channel<Bool>())
        let other = co_launch(on: queue) {
          while let isLong = try ball.receive() {
            if isLong { spin(3) }
            try back.send(isLong)
          }
        }
        try await co_launch(on: queue) {
          var parts = 0
          while parts < 32 {
            let isLong = isLong.isRaised
            try ball.send(isLong)
            _ = try back.receive()
            guard isLong else { continue }
            spin(3)
            parts += 1
          }
          ball.close()
        }.value
        try await other.value
      case .tasks:
        await Task(executorPreference: pool) {
          while !isLong.isRaised { await Task.yield() }
          for _ in 0..<64 {
            spin(3)
            await Task.yield()
          }
        }.value
      }
    }

    private static func launchParts(
      on pool: WorkerPool,
      _ isLong: Flag,
      _ count: Int,
      _ part: @escaping @Sendable (_ number: Int) -> Void
    ) async throws {
      let ended = Locked(0)
      let jobs = (0..<count).map { number in
        co_launch(on: pool.workers[0].currentQueue) {
          while !isLong.isRaised { try co_yield() }
          part(number)
          ended.withLock { $0 += 1 }
        }
      }
      for job in jobs { try await job.value }
      check(ended.current == count)
    }
  }

  @Test(arguments: Crowd.allCases)
  func `is not the sum of what many do, one after the other`(_ crowd: Crowd) async {
    await #expect(processExitsWith: .success) { [crowd] in
      let reports = Reports(after: .milliseconds(100))
      let pool = ownWorkers("crowd", count: 1)
      let worker = pool.workers[0]
      let isLong = Flag()
      let run = Task { try await crowd.run(on: pool, isLong) }
      // Until the worker looks once in 64 jobs.
      var read: UInt64 = 0
      for _ in 0..<10 {
        while case let now = worker.lastClockRead.load(ordering: .relaxed), now == read { sched_yield() }
        read = worker.lastClockRead.load(ordering: .relaxed)
      }
      isLong.raise()
      try await run.value
      check(reports.all.isEmpty, of: reports.all)
    }
  }

  /// However rarely the worker looks at its clock.
  @Test(arguments: [false, true]) func `is not reported for a job that yields again and again`(_ isTask: Bool) async {
    await #expect(processExitsWith: .success) { [isTask] in
      let reports = Reports(after: .milliseconds(100))
      let pool = ownWorkers("giving way", count: 1)
      /// Lets the worker resume many before it looks.
      @Sendable func readClockRarely() { Carrier.current?.pointee.switchesLeft = 1_000_000 }
      if isTask {
        await Task(executorPreference: pool) {
          readClockRarely()
          for _ in 0..<12 {
            spin(15)
            await Task.yield()
          }
        }.value
      } else {
        try await co_launch(on: pool.workers[0].currentQueue) {
          readClockRarely()
          for _ in 0..<12 {
            spin(15)
            try co_yield()
          }
        }.value
      }
      check(reports.all.isEmpty, of: reports.all)
    }
  }

  /// A wait that is satisfied at once gives way now and then, and leaves the job's word as it is.
  @Test func `is not reported for a job whose waits are satisfied at once`() async {
    await #expect(processExitsWith: .success) {
      let reports = Reports(after: .milliseconds(100))
      let pool = ownWorkers("satisfied", count: 1)
      try await co_launch(on: pool.workers[0].currentQueue) {
        let channel = Channel<Int>(.unbounded)
        let end = Clock.now + 200_000_000
        while Clock.now < end {
          try channel.send(1)
          _ = try channel.receive()
        }
      }.value
      check(reports.all.isEmpty, of: reports.all)
    }
  }

  /// The pinned one stays on its worker when it gives way, as each 256th wait does that is satisfied at once.
  @Test func `names the coroutine that runs, and not a pinned one that has yielded`() async {
    await #expect(processExitsWith: .success) {
      let reports = Reports(after: .milliseconds(20))
      let worker = ownWorkers("pinned", count: 1).workers[0]
      let (go, isOver) = (Gate(), Flag())
      let hog = co_launch(on: worker.currentQueue, name: "hog") {
        try go.pass()
        while !isOver.isRaised {}
      }
      // Launched later, so that a search finds it first.
      let pinned = co_launch(on: worker.currentQueue, name: "pinned") {
        try co_pinned {
          while !hog.record.seemsWaiting { try co_yield() }
          go.open()
          while !isOver.isRaised { try go.pass() }
        }
      }
      let stall = reports.first()
      isOver.raise()
      try await pinned.value
      check(stall.coroutine?.contains("hog") == true, of: reports.all)
    }
  }

  // MARK: Where the kernel says less

  @Test func `is reported without the name of the call where /proc is missing, and later`() async {
    await #expect(processExitsWith: .success) {
      let reports = Reports(after: .milliseconds(10))
      let pool = WorkerPool(count: 2, label: "blind", tasks: "/none")
      _ = Unmanaged.passRetained(pool)
      co_launch(on: pool.workers[0].currentQueue, name: "reader") { blockInRead() }
      let stall = reports.first()
      check(
        stall.activity == .asleep,
        stall.description.contains("asleep in the kernel: move blocking calls"),
        of: [stall]
      )
      // What computes is still found by its processor time.
      let isOver = Flag()
      co_launch(on: pool.workers[1].currentQueue, name: "hog") { while !isOver.isRaised {} }
      while reports.all.count < 2 { sched_yield() }
      isOver.raise()
      check(reports.all[1].coroutine?.contains("hog") == true, of: reports.all)
    }
  }

  @Test func `the state of a thread comes from the best of three files`() async throws {
    let tasks = "/tmp/coroutine-tests-\(getpid())-tasks"
    mkdir(tasks, 0o700)
    defer { rmdir(tasks) }
    let (isThere, isOver) = (Locked<Int32>(0), DispatchSemaphore(value: 0))
    startThread {
      isThere.current = clinux_thread_id()
      isOver.wait()
    }
    while isThere.current == 0 || !isAsleep(isThere.current) { await Task.yield() }
    let thread = isThere.current
    defer { isOver.signal() }
    #expect(name(of: clinux_thread_call("/proc/self/task", thread)) == "futex")
    func seen(_ files: [String]) -> Int {
      mkdir("\(tasks)/\(thread)", 0o700)
      for file in files { symlink("/proc/self/task/\(thread)/\(file)", "\(tasks)/\(thread)/\(file)") }
      defer {
        for file in files { unlink("\(tasks)/\(thread)/\(file)") }
        rmdir("\(tasks)/\(thread)")
      }
      return clinux_thread_call(tasks, thread)
    }
    #expect(name(of: seen(["syscall", "stat"])) == "futex")
    // A kernel may hide the function.
    #expect(["futex", "sleeps"].contains(name(of: seen(["stat", "wchan"]))))
    #expect(name(of: seen(["stat"])) == "sleeps")
    #expect(name(of: seen([])) == "unknown")
    // This thread runs.
    #expect(name(of: clinux_thread_call("/proc/self/task", clinux_thread_id())) != "sleeps")
    #expect(clinux_call_name(1_000_000) == nil)
  }

  @Test func `the processor time of a thread is read by its number, and no other`() async throws {
    let first = clinux_thread_time(clinux_thread_id())
    let last = Int64(Clock.ofThread)
    #expect(first > 0 && first <= last)
    // Numbers of threads are far smaller.
    #expect(clinux_thread_time(0x0FFF_FFFF) == -1)
  }
}

private enum Computed {
  static let isOver = Flag()
  /// Until the test has seen the report, however late the watchdog looks.
  static let value: Void = spin(until: isOver)
}

private enum Waiting {
  static let value = outcome { try waitForCancellation() }
}

/// The reports of this process.
private final class Reports: Sendable {
  private let stalls = Locked<[CoroutineRuntime.Stall]>([])

  init(after threshold: Duration) {
    CoroutineRuntime.onStall(after: threshold) { [stalls] stall in stalls.withLock { $0.append(stall) } }
  }

  var all: [CoroutineRuntime.Stall] { stalls.current }

  func first() -> CoroutineRuntime.Stall {
    while true {
      if let stall = all.first { return stall }
      sched_yield()
    }
  }
}

/// Uses the processor for some milliseconds.
private func spin(_ milliseconds: UInt64) {
  let end = Clock.ofThread + milliseconds * 1_000_000
  while Clock.ofThread < end {}
}

/// Uses the processor until the flag is raised.
@inline(never)
private func spin(until flag: Flag) {
  while !flag.isRaised {}
}

/// Suspends until the running coroutine is on `worker`: another worker may have taken it over.
private func go(to worker: Scheduler) throws {
  while !worker.isRunningHere { try co_switch(to: worker.currentQueue!) }
}

/// Reads from a pipe into which nobody writes.
private func blockInRead() {
  var ends: [Int32] = [-1, -1]
  var byte: UInt8 = 0
  check(pipe(&ends) == 0)
  _ = read(ends[0], &byte, 1)
}

/// Ends the process with a failure, whose number is that of the first false fact, unless everything is true.
private func check(_ facts: Bool..., of stalls: [CoroutineRuntime.Stall] = []) {
  guard let index = facts.firstIndex(of: false) else { return }
  writeToStandardError("fact \(index) is false of \(stalls)\n")
  exit(Int32(index) + 1)
}

private func name(of call: Int) -> String {
  switch call {
  case CLINUX_THREAD_RUNS.rawValue: "runs"
  case CLINUX_THREAD_SLEEPS.rawValue: "sleeps"
  case CLINUX_THREAD_UNKNOWN.rawValue: "unknown"
  default: clinux_call_name(call).map { String(cString: $0) } ?? "\(call)"
  }
}
