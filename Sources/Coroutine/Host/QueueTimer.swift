import Dispatch

/// The Dispatch timer source of a scheduler, which wakes it for its earliest timer.
///
/// Costs. When a Dispatch timer fires, two threads wake up; setting it again wakes Dispatch's manager thread once more.
/// So the source is set:
/// - only when the scheduler goes idle;
/// - only if the earliest deadline has changed;
/// - not twice within `pause`.
///
/// If many timers with different deadlines are queued, the source repeats, and wakes the scheduler every two
/// milliseconds for all of them. A single timer is accurate to the microsecond.
///
///     SET -- many were due, and the next is within two pauses ----> REPEATING
///      ^                                                              |
///      +---- few were due, or the next is further off ---------------+
final class QueueTimer {
  private let source: any DispatchSourceTimer
  private var armedFor = UInt64.max
  private var lastFired: UInt64 = 0
  private(set) var isRepeating = false

  /// The number of timers that were due since the source fired last.
  private var due = 0
  private var isCrowded: Bool { due > 64 }

  /// The pause after the source has fired, in ns.
  ///
  /// It is longer if many timers were due.
  private var pause: UInt64 { isCrowded ? 2_000_000 : 1_000_000 }

  init(_ queue: DispatchQueue) {
    source = DispatchSource.makeTimerSource(flags: .strict, queue: queue)
    // The handler finds the scheduler through the queue, which owns it. A weak reference would give the scheduler a
    // side table, which makes every retain of it slower, and looks like a leak to LeakSanitizer once the source is
    // released.
    source.setEventHandler { QueueHost.current?.hostTimerFired() }
    source.activate()
  }

  deinit { source.cancel() }

  func arm(_ wanted: UInt64) {
    if isCrowded, wanted < lastFired &+ 2 * pause {
      if !isRepeating { schedule(lastFired &+ pause, repeating: .nanoseconds(Int(pause))) }
      isRepeating = true
      return
    }
    let deadline = max(wanted, lastFired &+ pause)
    guard isRepeating || deadline != armedFor else { return }
    isRepeating = false
    armedFor = deadline
    schedule(deadline, repeating: .never)
  }

  /// Called when no timer is queued.
  ///
  /// A source that is set once may fire without effect, which costs less than to cancel it.
  func stopRepeating() {
    guard isRepeating else { return }
    isRepeating = false
    armedFor = .max
    source.schedule(deadline: .distantFuture)
  }

  private func schedule(_ deadline: UInt64, repeating interval: DispatchTimeInterval) {
    FirstTimer.shared.ensure()
    // Dispatch uses the two highest bits for other clocks. A source that fires early is set again.
    let deadline = DispatchTime(uptimeNanoseconds: min(deadline, UInt64(Int64.max / 2)))
    source.schedule(deadline: deadline, repeating: interval, leeway: .nanoseconds(0))
  }

  func sourceFired(at now: UInt64 = Clock.now) {
    armedFor = .max
    lastFired = now
    due = 0
  }

  func timersFired(_ count: Int) { due += count }
}
