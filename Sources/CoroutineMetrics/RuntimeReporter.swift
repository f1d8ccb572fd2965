#if Metrics
import Coroutine
public import CoreMetrics

/// Passes ``CoroutineRuntime/metrics`` on to swift-metrics.
///
/// ```swift
/// let reporter = RuntimeReporter()
/// co_launch(name: "metrics") { try reporter.run(every: .seconds(10)) }
/// ```
///
/// The labels are the names of ``CoroutineRuntime/metricsText``. Numbers of the moment are meters. What only grows is a
/// counter, which each report increases by the difference to the report before. A histogram is a counter for each of
/// its buckets, `…_bucket`, whose dimension `le` is the upper bound in seconds and which contains the smaller buckets,
/// and the counter `…_count`: a handler for each sample would cost more than the samples. What queues hold is not
/// passed on: their names are the program's, and a handler is kept for ever.
public final class RuntimeReporter: Sendable {
  // The handlers are made once, because a factory may keep what it has made for ever.
  private let meters: [Meter]
  private let factory: any MetricsFactory
  private let state: ThreadMutex<State>

  private struct State {
    var counters: GrowingCounters
    /// The meters of the kinds of waits that have occurred.
    var waiting: [String: Meter] = [:]
    /// The counters of the deadlines that have passed, by place, with what was reported.
    var timeouts: [String: (counter: Counter, reported: UInt64)] = [:]
  }

  /// Creates a reporter that reports to `factory`; without one, to the process's metrics system.
  ///
  /// - Parameter factory: The factory; the system must have been bootstrapped before if it is nil.
  public init(factory: (any MetricsFactory)? = nil) {
    let factory = factory ?? MetricsSystem.factory
    self.factory = factory
    let metrics = CoroutineRuntime.metrics
    let counters = metrics.counters.map { Counter(label: $0.label, dimensions: $0.dimensions, factory: factory) }
    state = ThreadMutex(State(counters: GrowingCounters(counters)))
    meters = metrics.gauges.map { Meter(label: $0.label, factory: factory) }
  }

  /// Reports once.
  ///
  /// The first report of a reporter contains everything since the start of the process. Never suspends; any thread.
  public func report() {
    state.withLock { state in
      let metrics = CoroutineRuntime.metrics
      state.counters.follow(metrics.counters.map(\.value))
      for (meter, gauge) in zip(meters, metrics.gauges) { meter.set(Int64(gauge.value)) }
      for kind in Set(state.waiting.keys).union(metrics.waiting.keys).sorted() {
        let meter =
          state.waiting[kind] ?? Meter(label: "coroutine_waiting", dimensions: [("kind", kind)], factory: factory)
        state.waiting[kind] = meter
        meter.set(Int64(metrics.waiting[kind] ?? 0))
      }
      for (site, count) in metrics.timeouts.sorted(by: { $0.key < $1.key }) {
        let known = state.timeouts[site]
        let label = "coroutine_timeouts_total"
        let counter = known?.counter ?? Counter(label: label, dimensions: [("site", site)], factory: factory)
        state.timeouts[site] = (counter, count)
        counter.increment(by: Int64(clamping: count - (known?.reported ?? 0)))
      }
    }
  }

  /// Reports now, and again after each `interval`, until the coroutine is cancelled.
  ///
  /// Suspends the calling coroutine, and never returns. Throws the coroutine's cancellation error, or
  /// `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "call `report` between the waits of a Task")
  public func run(every interval: Duration) throws -> Never {
    while true {
      report()
      try co_delay(interval)
    }
  }
}

extension CoroutineRuntime.Metrics {
  /// What only grows, always in the same order.
  fileprivate var counters: [(label: String, dimensions: [(String, String)], value: UInt64)] {
    let single: [(String, UInt64)] = [
      ("coroutine_launched_total", launched), ("coroutine_ended_total", ended), ("coroutine_failed_total", failed),
      ("coroutine_cancelled_total", cancelled), ("coroutine_switches_total", switches),
      ("coroutine_steals_total", steals),
      ("coroutine_stalls_total", stalls), ("coroutine_spare_workers_total", spareWorkers),
      ("coroutine_spare_shortages_total", spareShortages),
      ("coroutine_actor_restarts_total", restarts), ("coroutine_task_parts_total", taskParts),
    ]
    var all = single.map { (label: $0.0, dimensions: [(String, String)](), value: $0.1) }
    for (label, histogram) in [
      ("coroutine_wake_to_run_seconds", wakeToRun), ("coroutine_run_length_seconds", runLength),
      ("coroutine_timer_lateness_seconds", timerLateness),
    ] {
      var count: UInt64 = 0
      for (index, one) in histogram.counts.enumerated() {
        count += one
        let bound = index < histogram.bounds.count ? "\(histogram.bounds[index] / .seconds(1))" : "+Inf"
        all.append((label + "_bucket", [("le", bound)], count))
      }
      all.append((label + "_count", [], count))
    }
    return all
  }

  /// The numbers of the moment, always in the same order; without those of the kinds of waits.
  fileprivate var gauges: [(label: String, value: Int)] {
    [
      ("coroutine_live", live), ("coroutine_ready", ready), ("coroutine_running", running),
      ("coroutine_task_parts_ready", taskPartsReady),
      ("coroutine_stacks_in_use", stacksInUse), ("coroutine_stacks_pooled", stacksPooled),
      ("coroutine_stack_resident_bytes", stackBytes), ("coroutine_blocking_threads", blockingThreads),
      ("coroutine_blocking_waiting", blockingWaiting), ("coroutine_descriptors", descriptors),
    ]
  }
}
#endif
