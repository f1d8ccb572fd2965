import CTestSupport
import CoroutineTesting
import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

// In processes of their own, because the counters are the process's.
@Suite("CoroutineRuntime.metrics", .timeLimit(.minutes(10)))
struct MetricsTests {
  @Test func `launches, ends, failures and cancellations are counted, on queues, workers, hosts and in worlds`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      CoroutineRuntime.unhandledErrorHandler = { _ in }
      let before = CoroutineRuntime.metrics
      let loop = Loop()
      let scheduler = HostedScheduler(loop)
      /// Five coroutines: two succeed, two fail, one is cancelled in a wait, and the calling one makes six.
      let five: @Sendable () throws -> Void = {
        try co_launch {}.join()
        try co_launch(start: .immediate) { try co_yield() }.join()
        _ = try? co_launch { throw Failure() }.join()
        let custom = co_launch { try waitForCancellation() }
        try co_yield()
        custom.cancel(Failure())
        _ = try? custom.join()
        let lazy = co_launch(start: .lazy) { throw Failure() }
        _ = try? lazy.join()
      }
      try await co_launch(on: DispatchQueue(label: "metrics.queue"), five).value
      try await co_launch(five).value
      try await co_launch(on: scheduler, five).value
      try World(seed: 1).run(five)
      var after = CoroutineRuntime.metrics
      // A thread publishes its switches before it goes idle, which may be later than the end of its last coroutine.
      while after.switches - before.switches < 24 {
        await Task.yield()
        after = CoroutineRuntime.metrics
      }
      #expect(after.launched - before.launched == 24)
      #expect(after.ended - before.ended == 24)
      #expect(after.failed - before.failed == 8)
      #expect(after.cancelled - before.cancelled == 4)
      #expect(after.live == 0 && after.ready == 0 && after.running == 0 && after.waiting.isEmpty)
      loop.end()
    }
  }

  @Test func `each switch is counted once`() async {
    await #expect(processExitsWith: .success) {
      let queue = DispatchQueue(label: "metrics.switches")
      let before = CoroutineRuntime.metrics.switches
      let yields = 10_000
      try await co_launch(on: queue) {
        let other = co_launch { for _ in 0..<yields { try co_yield() } }
        for _ in 0..<yields { try co_yield() }
        try other.join()
      }.value
      // The drain publishes the rest before it goes idle, which comes after the end.
      try await onBlock(of: queue) {}
      let count = CoroutineRuntime.metrics.switches - before
      // Both begin, each yield is a switch, and so is the end of the join. onBlock waits in a coroutine, too.
      #expect(count >= 2 * UInt64(yields) + 2 && count <= 2 * UInt64(yields) + 8, "\(count)")
    }
  }

  @Test func `the states add up to the live coroutines`() async {
    await #expect(processExitsWith: .success) {
      let queue = DispatchQueue(label: "metrics.states")
      let gate = Gate()
      let (metrics, count) = try await co_launch(on: queue) {
        let channel = Channel<Int>()
        let lock = FairMutex()
        try lock.lock()
        for _ in 0..<7 { co_launch { try gate.pass() } }
        for _ in 0..<5 { co_launch { _ = try channel.receive() } }
        for _ in 0..<3 { co_launch { try lock.withLock {} } }
        co_launch { try co_delay(.seconds(3_600)) }
        try co_yield()
        for _ in 0..<11 { co_launch {} }
        return (CoroutineRuntime.metrics, CoroutineRuntime.liveCount)
      }.value
      #expect(metrics.waiting == ["promise": 7, "receive": 5, "lock": 3, "delay": 1])
      #expect(metrics.ready == 11 && metrics.running == 1)
      #expect(metrics.live == count && count == 28)
      #expect(metrics.live == metrics.ready + metrics.running + metrics.waiting.values.reduce(0, +))
      #expect(metrics.launched - metrics.ended == 28)
      #expect(metrics.stacksInUse >= 17 && metrics.stackBytes >= 17 * 4_096)
    }
  }

  @Test func `no counter goes back while queues with coroutines come and go`() async {
    await #expect(processExitsWith: .success) {
      let isOver = Atomic<Bool>(false)
      async let reader: Int = onOwnThread {
        var reads = 0
        var last = CoroutineRuntime.metrics.counters
        repeat {
          let next = CoroutineRuntime.metrics.counters
          for (earlier, later) in zip(last, next) where later < earlier { throw Failure() }
          #expect(next[1] <= next[0], "more ends than launches")
          last = next
          reads += 1
        } while !isOver.load(ordering: .relaxed)
        return reads
      }
      let before = CoroutineRuntime.metrics.ended
      let rounds = isSanitized ? 200 : 2_000
      for _ in 0..<rounds {
        let queue = DispatchQueue(label: "metrics.short")
        try await co_launch(on: queue) { try co_launch {}.join() }.value
      }
      isOver.store(true, ordering: .relaxed)
      #expect(try await reader > 0)
      #expect(CoroutineRuntime.metrics.ended - before >= UInt64(2 * rounds))
    }
  }

  @Test func `a released queue has given its counts to the total, and its scheduler has gone`() async {
    await #expect(processExitsWith: .success) {
      let before = SchedulerRegistry.ended[.launched]
      do {
        let queue = DispatchQueue(label: "metrics.released")
        try await co_launch(on: queue) {}.value
      }
      // Dispatch releases the queue, and so the scheduler, at some time after the last drain.
      while SchedulerRegistry.ended[.launched] == before { sched_yield() }
      #expect(SchedulerRegistry.ended[.launched] == before + 1)
      #expect(CoroutineRuntime.metrics.launched >= before + 1)
    }
  }

  @Test func `the runs of a queue, one way to a run in 64 yields, and one timer in 64 are measured`() async {
    await #expect(processExitsWith: .success) {
      let before = CoroutineRuntime.metrics
      let queue = DispatchQueue(label: "metrics.samples")
      let yields = 6_400
      try await co_launch(on: queue) {
        let other = co_launch { for _ in 0..<yields { try co_yield() } }
        for _ in 0..<yields { try co_yield() }
        try other.join()
        for _ in 0..<128 { try co_delay(.microseconds(10)) }
      }.value
      // The drain reads its clock before it goes idle, which comes after the end.
      try await onBlock(of: queue) {}
      let after = CoroutineRuntime.metrics
      let switches = after.switches - before.switches
      let runs = after.runLength.total - before.runLength.total
      let wakes = after.wakeToRun.total - before.wakeToRun.total
      // onBlock waits in a coroutine of a worker, which may leave its runs out.
      #expect(runs >= switches - 8 && runs <= switches, "\(runs) of \(switches)")
      // The clock is read after 64 switches at most.
      #expect(wakes >= UInt64(2 * yields / 64) && wakes <= switches, "\(wakes) of \(switches)")
      #expect(after.timerLateness.total - before.timerLateness.total >= 2)
      #expect(after.runLength.sum > before.runLength.sum)
    }
  }

  @Test func `of eight messages that wake an idle queue, one is measured, and each launch that does`() async {
    await #expect(processExitsWith: .success) {
      let queue = DispatchQueue(label: "metrics.idle")
      let scheduler = QueueHost.scheduler(for: queue)
      for _ in 0..<80 {
        try await co_launch(on: queue) {}.value
        // The drain goes idle after the end.
        while !scheduler.inbox.isIdle { await Task.yield() }
      }
      #expect(scheduler.wakeUps == 80)
      #expect(CoroutineRuntime.metrics.wakeToRun.total == 10 + 80)
    }
  }

  // Real time: what is measured is the clock of the machine.
  @Test(.tags(.realClock)) func `a long run, and a long way from a wake-up to a run, are in their buckets`() async {
    await #expect(processExitsWith: .success) {
      let queue = DispatchQueue(label: "metrics.long")
      try await co_launch(on: queue) { RealClock.block(for: .milliseconds(30)) }.value
      // It is counted after the result is there.
      while CoroutineRuntime.metrics.runLength.counts[14...].reduce(0, +) == 0 { await Task.yield() }
      #expect(CoroutineRuntime.metrics.runLength.counts[14...].reduce(0, +) == 1)
      // The queue's thread may have begun late, on a busy machine.
      let late = CoroutineRuntime.metrics.wakeToRun.counts[14...].reduce(0, +)
      // The clock is read after eight runs at most, and the next coroutine has waited for all of them.
      try await co_launch(on: queue) { for _ in 0..<16 { co_launch { RealClock.block(for: .milliseconds(10)) } } }.value
      while CoroutineRuntime.metrics.wakeToRun.counts[14...].reduce(0, +) == late { await Task.yield() }
    }
  }

  @Test func `the metrics answer while every worker is blocked`() async {
    await #expect(processExitsWith: .success) {
      let count = WorkerPool.shared.workers.count
      let release = DispatchSemaphore(value: 0)
      let blocked = Locked(0)
      for _ in 0..<count {
        co_launch {
          blocked.withLock { $0 += 1 }
          release.wait()
        }
      }
      let metrics = try await onDetachedThread {
        while blocked.current < count { sched_yield() }
        return CoroutineRuntime.metrics
      }
      #expect(metrics.running == count)
      #expect(CoroutineRuntime.metricsText.contains("coroutine_running \(count)\n"))
      for _ in 0..<count { release.signal() }
    }
  }

  // Slow builds show hazard 13 here: a thread of the parent may be making metadata under a lock of Swift's runtime.
  @Test(.enabled(if: !isSanitized))
  func `a forked child has the counts of its parent`() async {
    await #expect(processExitsWith: .success) {
      try await co_launch {}.value
      // What the child uses is made before: Swift's runtime makes it under a lock, which a fork may find taken.
      _ = CoroutineRuntime.metrics
      while !cts_may_fork() { sched_yield() }
      let status = cts_in_child(
        300,
        { _ in
          CoroutineRuntime.metrics.launched >= 1 ? 0 : 1
        },
        nil
      )
      #expect(status == 0)
    }
  }

  @Test func `blocking work has its threads and its queue in the metrics`() async {
    await #expect(processExitsWith: .success) {
      CoroutineRuntime.blockingThreadLimit = 2
      let release = DispatchSemaphore(value: 0)
      let jobs = (0..<5).map { _ in co_launch { try co_blocking { release.wait() } } }
      while CoroutineRuntime.metrics.blockingWaiting < 3 { await Task.yield() }
      #expect(CoroutineRuntime.metrics.blockingThreads == 2)
      for _ in 0..<5 { release.signal() }
      for job in jobs { try await job.value }
      #expect(CoroutineRuntime.metrics.blockingWaiting == 0)
    }
  }

  @Test func `the parts of Tasks on workers are counted`() async {
    let before = CoroutineRuntime.metrics.taskParts
    await Task(executorPreference: WorkerPoolExecutor.shared) { for _ in 0..<10 { await Task.yield() } }.value
    #expect(CoroutineRuntime.metrics.taskParts >= before + 10)
  }

  @Test func `every duration has one bucket, below the bucket's bound and above the one before`() {
    for nanoseconds: UInt64 in [0, 1, 999, 1_000, 1_001, 2_000, 2_001, 5_000, 5_001, 10_000, 10_001, 999_999_999] {
      let bucket = HistogramScale.bucket(of: nanoseconds)
      #expect(nanoseconds <= HistogramScale.bound(bucket), "\(nanoseconds)")
      #expect(bucket == 0 || nanoseconds > HistogramScale.bound(bucket - 1), "\(nanoseconds)")
    }
    for bucket in 0..<HistogramScale.bounds {
      #expect(HistogramScale.bucket(of: HistogramScale.bound(bucket)) == bucket)
      #expect(HistogramScale.bucket(of: HistogramScale.bound(bucket) + 1) == bucket + 1)
    }
    #expect(HistogramScale.bound(0) == 1_000 && HistogramScale.bound(HistogramScale.bounds - 1) == 10_000_000_000)
    #expect(HistogramScale.bucket(of: .max) == HistogramScale.bounds)
  }
}

private struct Failure: Error {}

extension CoroutineRuntime.Metrics {
  /// All that never decreases, `launched` and `ended` first.
  fileprivate var counters: [UInt64] {
    [launched, ended, failed, cancelled, switches, steals, stalls, spareWorkers, taskParts]
      + wakeToRun.counts + runLength.counts + timerLateness.counts
  }
}

extension CoroutineRuntime.Metrics.Histogram {
  fileprivate var total: UInt64 { counts.reduce(0, +) }
}

/// Runs `body` on a thread of its own, and suspends until its end, without a coroutine.
private func onDetachedThread<Output: Sendable>(_ body: @escaping @Sendable () throws -> Output) async throws -> Output
{
  try await withCheckedThrowingContinuation { continuation in
    startThread { continuation.resume(with: Result(catching: body)) }
  }
}
