#if Demo
import Coroutine

/// Reads feeds, some at a time, and tells of each how it went.
struct FeedReader: Sendable {
  let opener: FeedOpener
  let store: Store
  /// How many are read at once; what is in memory grows with this, not with the number of feeds.
  let jobs: Int
  /// How long one feed may take.
  let timeout: Double
  /// Unbounded, since telling must neither wait nor fail: a reader that has been cancelled still says what it has
  /// stored.
  let news: Channel<FeedNews>

  /// Suspends until each feed has been read, or has failed: no feed's failure is an error here.
  ///
  /// Cancelled, it ends as soon as what has been read of the feeds under way is stored.
  func read(_ sources: [Source]) throws {
    let waiting = Channel<(index: Int, source: Source)>()
    try co_scope { scope in
      for number in 1...max(1, min(jobs, sources.count)) {
        scope.launch(name: "reader \(number)") {
          while let (index, source) = try waiting.receive() { read(source, index) }
        }
      }
      for (index, source) in sources.enumerated() { try waiting.send((index, source)) }
      waiting.close()
    }
  }

  private func read(_ source: Source, _ index: Int) {
    let start = ContinuousClock.now
    let reading = FeedReading(of: source, by: self, at: index)
    reading.tell(.began)
    do {
      try co_timeout(.seconds(timeout)) { try reading.run() }
    } catch {
      reading.report.outcome = .failed(reading.explain(error))
    }
    reading.report.duration = ContinuousClock.now - start
    reading.tell(.ended)
  }
}
#endif
