import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

/// What is counted of stalls, and the sentences for stalls of special kinds.
///
/// Each in a process of its own, because the handler is the process's. Threads are looked at by the real clock.
@Suite("Stalls that are counted and told", .timeLimit(.minutes(10)), .tags(.realClock))
struct StallReportTests {
  @Test func `a loop that catches the errors of its waits is told once more after its cancellation`() async {
    await #expect(processExitsWith: .success) {
      StallReports.patienceWithCancelled.store(60_000_000, ordering: .relaxed)
      let stalls = Locked<[CoroutineRuntime.Stall]>([])
      let counted = Locked<UInt64>(0)
      let isOver = Flag()
      let job = co_launch(name: "worker") {
        while !isOver.isRaised { do { try co_delay(.seconds(600)) } catch {} }
      }
      settle(1)
      // From here on: a slow machine may keep the worker for long before the coroutine's first wait.
      CoroutineRuntime.onStall(after: .milliseconds(20)) { stall in
        if stall.sinceCancellation != nil { counted.withLock { $0 = CoroutineRuntime.metrics.stalls } }
        stalls.withLock { $0.append(stall) }
      }
      job.cancel()
      var last: CoroutineRuntime.Stall?
      while last == nil {
        last = stalls.current.first { $0.sinceCancellation != nil }
        sched_yield()
      }
      #expect(last?.sinceCancellation.map { $0 >= .milliseconds(60) } == true)
      let text = "\(last!)"
      #expect(text.contains("\"worker\" (id ") && text.contains(" after its cancellation, and keeps "), "\(text)")
      #expect(text.contains("a loop that catches these errors never ends") && !text.contains("co_yield"), "\(text)")
      // The report of the stall itself does not advise a call that throws at once.
      let first = stalls.current[0]
      #expect(first.sinceCancellation == nil, "\(first)")
      // It may have slept as well, for pages of memory.
      if first.activity == .computing { #expect("\(first)".contains("it was cancelled: "), "\(first)") }
      let count = stalls.current.count
      let end = Clock.now + 200_000_000
      while Clock.now < end { sched_yield() }
      #expect(stalls.current.count == count && count == 2, "\(stalls.current)")
      #expect(counted.current >= 1 && CoroutineRuntime.metrics.stalls == counted.current, "\(counted.current)")
      isOver.raise()
      try await job.value
    }
  }

  @Test func `one that sleeps for most of the time after its cancellation is told of once more later`() async {
    await #expect(processExitsWith: .success) {
      StallReports.patienceWithCancelled.store(300_000_000, ordering: .relaxed)
      let stalls = Locked<[CoroutineRuntime.Stall]>([])
      let isOver = Flag()
      let job = co_launch(name: "worker") {
        for _ in 0..<2 { do { try co_delay(.seconds(600)) } catch {} }
        // Until the sleep was seen: a slow machine's watchdog may come late.
        repeat { RealClock.block(for: .milliseconds(200)) } while stalls.current.isEmpty
        while !isOver.isRaised { do { try co_delay(.seconds(600)) } catch {} }
      }
      settle(1)
      CoroutineRuntime.onStall(after: .milliseconds(20)) { stall in stalls.withLock { $0.append(stall) } }
      job.cancel()
      while !stalls.current.contains(where: { $0.sinceCancellation != nil }) { sched_yield() }
      #expect(stalls.current.first?.activity.systemCall != nil, "\(stalls.current)")
      isOver.raise()
      try await job.value
    }
  }

  @Test func `each stall of a queue of the program counts`() async {
    await #expect(processExitsWith: .success) {
      let stalls = Locked(0)
      CoroutineRuntime.onStall(after: .milliseconds(20)) { _ in stalls.withLock { $0 += 1 } }
      for number in 1...3 {
        let job = co_launch(on: taggedQueue("busy \(number)")) { while stalls.current < number {} }
        try await job.value
      }
      while CoroutineRuntime.metrics.stalls < 3 { sched_yield() }
      #expect(CoroutineRuntime.metrics.stalls == 3)
    }
  }

  @Test func `that all spare workers are taken is a line and a number, each time that it begins`() async throws {
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      CoroutineRuntime.onStall(nil)
      let pool = ownWorkers("limit", count: 1)
      pool.watching.store(true, ordering: .relaxed)
      let release = DispatchSemaphore(value: 0)
      for time in 1...2 {
        var jobs: [Job<Void>] = []
        while let spare = pool.spareWorker() {
          jobs.append(co_launch(on: spare.currentQueue) { synchronously { release.wait() } })
        }
        for _ in 0..<5 { #expect(pool.spareWorker() == nil) }
        #expect(CoroutineRuntime.metrics.spareShortages == UInt64(time))
        for _ in jobs { release.signal() }
        for job in jobs { try await job.value }
        while pool.spares.contains(where: { !$0.inbox.isIdle }) { await Task.yield() }
      }
      // Another thread writes the line.
      while StallLines.writing.load(ordering: .acquiring) > 0 { sched_yield() }
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    let lines = text.split(separator: "\n").filter { $0.hasPrefix("Coroutine: all 64 spare workers are taken by ") }
    #expect(lines.count == 2, "\(text)")
  }
}
