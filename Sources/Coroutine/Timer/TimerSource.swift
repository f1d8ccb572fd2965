import Dispatch
import Glibc
import Synchronization

/// The clock of timers: nanoseconds of CLOCK_MONOTONIC, which is Dispatch's uptime as well.
enum Clock {
  static var now: UInt64 { read(CLOCK_MONOTONIC) }

  /// The processor time of the calling thread.
  static var ofThread: UInt64 { read(CLOCK_THREAD_CPUTIME_ID) }

  private static func read(_ clock: clockid_t) -> UInt64 {
    var time = timespec()
    clock_gettime(clock, &time)
    return UInt64(time.tv_sec) &* 1_000_000_000 &+ UInt64(time.tv_nsec)
  }
}

extension Duration {
  /// Whole nanoseconds, rounded up so that nothing ends early; clamped at both ends.
  var nanoseconds: Int64 {
    // Up to 18 seconds the quotient is one of words; beyond, of a library's double words.
    if let short = UInt64(exactly: attoseconds) {
      let (quotient, remainder) = short.quotientAndRemainder(dividingBy: 1_000_000_000)
      return Int64(quotient) + (remainder > 0 ? 1 : 0)
    }
    let (seconds, attoseconds) = components
    let (product, overflow) = seconds.multipliedReportingOverflow(by: 1_000_000_000)
    if overflow { return seconds < 0 ? .min : .max }
    let rounded = attoseconds / 1_000_000_000 + (attoseconds % 1_000_000_000 > 0 ? 1 : 0)
    let (sum, overflowed) = product.addingReportingOverflow(rounded)
    return overflowed ? (product < 0 ? .min : .max) : sum
  }

  /// The time this long after `now`, which is at least a century off where it does not fit.
  func deadline(after now: UInt64) -> UInt64 { Self.deadline(nanoseconds, after: now) }
  static func deadline(_ nanoseconds: Int64, after now: UInt64) -> UInt64 {
    now &+ UInt64(min(max(0, nanoseconds), .max / 2))
  }
}

/// The one Dispatch source of a scheduler: wakes it for its earliest timer.
///
/// A GCD timer that goes off costs the wakes of two threads, and to set it anew that of Dispatch's manager once more. So it is
/// armed only when the scheduler goes idle, only if the earliest deadline has moved, and not twice within a rest: a crowd of
/// sleepers whose deadlines are scattered wakes every two milliseconds for all of them, by a timer that then repeats by
/// itself; a lone one to the microsecond.
///
///     SET -- a crowd was due, and more is within two rests --> TICKING
///      ^                                                         |
///      +---- no crowd was due, or the next is further off -------+
final class TimerSource {
  private let source: any DispatchSourceTimer
  private var armedFor = UInt64.max
  private var lastWentOff: UInt64 = 0
  private(set) var isTicking = false

  /// How many timers were due since it went off last.
  private var due = 0
  private var isCrowded: Bool { due > 64 }

  /// How long it rests after it went off, in ns: longer when that was for many.
  private var rest: UInt64 { isCrowded ? 2_000_000 : 1_000_000 }

  init(_ queue: DispatchQueue) {
    source = DispatchSource.makeTimerSource(flags: .strict, queue: queue)
    // Found through the queue, which owns it: a weak reference would give the scheduler a side table, which makes every
    // retain of it slower and looks like a leak to LeakSanitizer once the alarm has gone.
    source.setEventHandler { SchedulerRegistry.current?.timerSourceFired() }
    source.activate()
  }

  deinit { source.cancel() }

  func arm(_ wanted: UInt64) {
    if isCrowded, wanted < lastWentOff &+ 2 * rest {
      if !isTicking { schedule(lastWentOff &+ rest, repeating: .nanoseconds(Int(rest))) }
      isTicking = true
      return
    }
    let deadline = max(wanted, lastWentOff &+ rest)
    guard isTicking || deadline != armedFor else { return }
    isTicking = false
    armedFor = deadline
    schedule(deadline, repeating: .never)
  }

  /// Nothing is queued.
  ///
  /// One that is set once may go off for nothing, which costs less than to call it off.
  func rests() {
    guard isTicking else { return }
    isTicking = false
    armedFor = .max
    source.schedule(deadline: .distantFuture)
  }

  private func schedule(_ deadline: UInt64, repeating interval: DispatchTimeInterval) {
    FirstTimer.shared.ensure()
    let deadline = DispatchTime(uptimeNanoseconds: deadline)
    source.schedule(deadline: deadline, repeating: interval, leeway: .nanoseconds(0))
  }

  func wentOff(at now: UInt64 = Clock.now) {
    armedFor = .max
    lastWentOff = now
    due = 0
  }

  func fired(_ count: Int) { due += count }
}

/// The message that an alarm sends: it makes the drain look at the clock.
final class TimerWakeup: WorkItem, @unchecked Sendable {
  // Sound because its fields are atomic.
  let isPending = Atomic<Bool>(false)
  /// Sent because the alarm went off, and not by someone who wants the drain to look.
  let isFromSource = Atomic<Bool>(false)
}

extension Scheduler {
  /// The source's handler, on the queue.
  ///
  /// A message rather than a look at the wheel: on a concurrent queue a drain may be under way, about to go idle, and
  /// only a message keeps it from that.
  func timerSourceFired() {
    timerWakeup.isFromSource.store(true, ordering: .releasing)
    guard !timerWakeup.isPending.exchange(true, ordering: .acquiringAndReleasing) else { return }
    if inbox.push(.work(Unmanaged.passRetained(timerWakeup))) { drain() }
  }

  /// The same from anywhere.
  func sendTimerWakeup() {
    guard !timerWakeup.isPending.exchange(true, ordering: .acquiringAndReleasing) else { return }
    push(.work(Unmanaged.passRetained(timerWakeup)))
  }
}
