/// How long a drain keeps its queue, and how often it reads the clock meanwhile (Scheduler+Drain.swift).
///
/// Used by the drain only.
struct TimeSlice {
  /// The time that a drain may keep its queue, in ns, and so the longest wait of the queue's other blocks.
  ///
  /// Measured with 10,000 ready coroutines: 250 µs, 1 ms and 4 ms give the same throughput, and the queue's other
  /// blocks a 99th percentile of 0.22, 1.0 and 3 ms.
  static var slice: UInt64 { 250_000 }
  /// The number of resumes that a drain may do.
  static var most: Int { 16_384 }

  /// Small at first: the first jobs of a drain may run long.
  var interval = 4
  /// The number of resumes before the next read of the clock: `interval`, or fewer after a batch of events.
  var allotted = 4
  /// About the mean duration of the resumes between the last two reads of the clock in one drain, in ns.
  var mean: UInt64 = 0
  var resumes = 0
  var lastClockRead: UInt64 = 0
  var end: UInt64 = 0

  mutating func begin(_ now: UInt64) {
    lastClockRead = now
    end = now + Self.slice
    resumes = 0
    allotted = interval
  }

  /// Returns whether the drain may continue; adjusts the interval to the duration of the last jobs.
  mutating func check(_ now: UInt64) -> Bool {
    mean = (now - lastClockRead) / UInt64(allotted)
    resumes += allotted
    lastClockRead = now
    // What `interval` such resumes would take; after a batch there were fewer.
    let expected = mean &* UInt64(interval)
    if expected > Self.slice / 8 {
      interval = max(1, interval / 8)
    } else if expected < Self.slice / 32 {
      interval = min(64, interval * 2)
    }
    allotted = interval
    return now < end && resumes < Self.most
  }
}
