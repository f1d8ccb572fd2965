#if Metrics
import CoreMetrics

/// Counters of swift-metrics that follow numbers which only grow: each report adds the difference to the one before.
///
/// The handlers are made once, because a factory may keep what it has made for ever.
struct GrowingCounters {
  private let counters: [Counter]
  /// The numbers at the last report.
  private var last: [UInt64]

  init(_ counters: [Counter]) {
    self.counters = counters
    last = Array(repeating: 0, count: counters.count)
  }

  /// Reports the numbers, in the order of the counters.
  mutating func follow(_ values: [UInt64]) {
    for (index, counter) in counters.enumerated() where values[index] > last[index] {
      counter.increment(by: Int64(clamping: values[index] - last[index]))
    }
    last = values
  }
}
#endif
