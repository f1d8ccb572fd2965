import Dispatch
import Glibc
import Synchronization

/// The clock of timers: nanoseconds of CLOCK_MONOTONIC, which is Dispatch's uptime as well.
enum Clock {
  static var now: UInt64 {
    var time = timespec()
    clock_gettime(CLOCK_MONOTONIC, &time)
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
/// A GCD timer that goes off costs the wakes of two threads, so it is armed only when the scheduler goes idle, only if the
/// earliest deadline has moved, and not twice within a rest: a crowd of sleepers whose deadlines are scattered wakes
/// every millisecond or two for all of them, a lone one to the microsecond.
final class Alarm {
  private let source: any DispatchSourceTimer
  private var armedFor = UInt64.max
  private var lastWentOff: UInt64 = 0

  /// How long it rests after it went off, in ns: longer when that was for many.
  private var rest: UInt64 = 1_000_000

  init(_ queue: DispatchQueue) {
    source = DispatchSource.makeTimerSource(flags: .strict, queue: queue)
    // Found through the queue, which owns it: a weak reference would give the scheduler a side table, which makes every
    // retain of it slower and looks like a leak to LeakSanitizer once the alarm has gone.
    source.setEventHandler { SchedulerRegistry.current?.alarmWentOff() }
    source.activate()
  }

  deinit { source.cancel() }

  func arm(_ wanted: UInt64) {
    let deadline = max(wanted, lastWentOff &+ rest)
    guard deadline != armedFor else { return }
    armedFor = deadline
    source.schedule(deadline: DispatchTime(uptimeNanoseconds: deadline), leeway: .nanoseconds(0))
  }

  func wentOff() {
    armedFor = .max
    lastWentOff = Clock.now
  }

  /// What came of it: so many timers were due.
  func fired(_ count: Int) { rest = count > 64 ? 2_000_000 : 1_000_000 }
}

/// The message that an alarm sends: it makes the drain look at the clock.
final class TimerTick: WorkItem, @unchecked Sendable {
  // Sound because its fields are atomic.
  let isPending = Atomic<Bool>(false)
  /// Sent because the alarm went off, and not by someone who wants the drain to look.
  let isFromAlarm = Atomic<Bool>(false)
}

extension Scheduler {
  /// The source's handler, on the queue.
  ///
  /// A message rather than a look at the wheel: on a concurrent queue a drain may be under way, about to go idle, and
  /// only a message keeps it from that.
  func alarmWentOff() {
    tick.isFromAlarm.store(true, ordering: .releasing)
    guard !tick.isPending.exchange(true, ordering: .acquiringAndReleasing) else { return }
    if inbox.push(.work(Unmanaged.passRetained(tick))) { drain() }
  }

  /// The same from anywhere.
  func sendTick() {
    guard !tick.isPending.exchange(true, ordering: .acquiringAndReleasing) else { return }
    push(.work(Unmanaged.passRetained(tick)))
  }
}
