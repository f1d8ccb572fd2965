#if Metrics
import CoreMetrics
import Coroutine
import CoroutineMetrics
import MetricsTestKit
import Testing

@Suite("RuntimeReporter", .serialized, .timeLimit(.minutes(10)))
struct RuntimeReporterTests {
  @Test func `a report has what the runtime counts, and the next one what has been added`() async throws {
    let test = TestMetrics()
    let reporter = RuntimeReporter(factory: test)
    reporter.report()
    let first = try test.expectCounter("coroutine_launched_total").totalValue
    for _ in 0..<7 { try await co_launch {}.value }
    reporter.report()
    let launched = try test.expectCounter("coroutine_launched_total")
    #expect(launched.totalValue - first == 7)
    #expect(launched.totalValue == Int64(CoroutineRuntime.metrics.launched))
  }

  @Test func `waiting coroutines have a meter for each kind, which goes back to zero`() async throws {
    let test = TestMetrics()
    let reporter = RuntimeReporter(factory: test)
    let (started, gate) = (Promise<Void>(), Promise<Void>())
    let waiter = co_launch {
      started.fulfill(())
      try co_await(gate)
    }
    _ = try await co_launch { try co_await(started) }.value
    while CoroutineRuntime.metrics.waiting["promise"] == nil { await Task.yield() }
    reporter.report()
    let meter = try test.expectMeter("coroutine_waiting", [("kind", "promise")])
    #expect(meter.lastValue == 1)
    gate.fulfill(())
    _ = try await waiter.value
    reporter.report()
    #expect(meter.lastValue == 0)
  }

  @Test func `deadlines that have passed are a counter for each place`() async throws {
    let test = TestMetrics()
    let reporter = RuntimeReporter(factory: test)
    let site = "\(#fileID):\(#line + 1)"
    let pass = { @Sendable in try? co_timeout(.zero) { try co_delay(.seconds(60)) } }
    for count in [1, 3] {
      _ = try await co_launch { while (CoroutineRuntime.metrics.timeouts[site] ?? 0) < count { pass() } }.value
      reporter.report()
      let counter = try test.expectCounter("coroutine_timeouts_total", [("site", site)])
      #expect(counter.totalValue == Int64(count))
    }
  }

  @Test func `the buckets of a histogram contain the smaller ones`() async throws {
    let test = TestMetrics()
    try await co_launch { for _ in 0..<10_000 { try co_yield() } }.value
    RuntimeReporter(factory: test).report()
    let buckets = test.counters(label: "coroutine_run_length_seconds_bucket")
    let last = buckets.first { $0.dimensions.contains { $0 == ("le", "+Inf") } }?.totalValue
    #expect(buckets.count <= 23 && !buckets.isEmpty)
    #expect(last == (try test.expectCounter("coroutine_run_length_seconds_count").totalValue))
    #expect(buckets.allSatisfy { $0.totalValue <= last ?? 0 })
  }

  @Test func `a run reports until its coroutine is cancelled`() async throws {
    let test = TestMetrics()
    let job: Job<Void> = co_launch { try RuntimeReporter(factory: test).run(every: .seconds(3_600)) }
    while (try? test.expectMeter("coroutine_live").lastValue) == nil { await Task.yield() }
    job.cancel()
    await #expect(throws: CancellationError.self) { try await job.value }
  }
}
#endif
