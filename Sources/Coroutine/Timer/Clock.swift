import CCoroutineRuntime
import Glibc
import Synchronization

/// The clock of timers: nanoseconds of CLOCK_MONOTONIC, which is also Dispatch's uptime.
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

// Every duration that a caller gives is converted by `nanoseconds`, and becomes a time by `deadline`. Neither traps,
// whatever the duration is. Other arithmetic of `Duration` does: `components` beyond 2^63 seconds, sums and products
// beyond 2^127 attoseconds.
extension Duration {
  /// The duration in whole nanoseconds, rounded up so that no wait ends early, and clamped at both ends.
  package var nanoseconds: Int64 {
    // Up to 18 seconds, one division of machine words is enough. Beyond, the library divides double words.
    if let short = UInt64(exactly: attoseconds) {
      let (quotient, remainder) = short.quotientAndRemainder(dividingBy: 1_000_000_000)
      return Int64(quotient) + (remainder > 0 ? 1 : 0)
    }
    // The quotient is rounded towards zero, which rounds a negative duration up.
    let (quotient, remainder) = attoseconds.quotientAndRemainder(dividingBy: 1_000_000_000)
    return Int64(clamping: quotient + (remainder > 0 ? 1 : 0))
  }

  /// The deadline that no clock reaches: a timer with it is not started.
  static var never: UInt64 { .max }

  /// Returns the time this long after `now`, or `never` if the clock would show 2^63 ns or more, 292 years.
  func deadline(after now: UInt64) -> UInt64 { Self.deadline(nanoseconds, after: now) }
  static func deadline(_ nanoseconds: Int64, after now: UInt64) -> UInt64 {
    let (sum, overflow) = now.addingReportingOverflow(UInt64(max(0, nanoseconds)))
    return overflow || sum >= UInt64(Int64.max) ? never : sum
  }
}

// MARK: - The clock of the calling code

/// The clock by which the calling code's timers run: nanoseconds, in a simulated world those of its host.
package enum CallerClock {
  package static var now: UInt64 {
    guard let scheduler = Carrier.current?.pointee.job?.pointee.scheduler.load(ordering: .relaxed) else {
      return Clock.now
    }
    return scheduler._withUnsafeGuaranteedRef { $0.clock }
  }
}

// MARK: - The time of a host in a world

// Time as the running code measures it.
//
// It differs from the scheduler's clock in one case only: in a simulated world, on a host whose clock runs at a rate of
// its own. Timers, their wheel and the host's wake-ups use the scheduler's clock always. So a duration is converted
// once, when its timer is created; and code that measures how much time has passed reads `localClock`.
//
// Outside a world, each function costs one load more (`cco_has_worlds`).

extension Scheduler {
  /// The clock by which the running code measures how much time has passed.
  var localClock: UInt64 { cco_has_worlds() ? host.localNow : clock }

  /// Returns how far the running code's clock advances in the next `nanoseconds` of this scheduler's clock.
  func localLength(_ nanoseconds: UInt64) -> Int64 {
    Int64(clamping: cco_has_worlds() ? host.localLength(nanoseconds) : nanoseconds)
  }

  /// Returns the time of this scheduler's clock at which `nanoseconds` of the running code's clock have passed.
  func deadline(_ nanoseconds: Int64, after now: UInt64) -> UInt64 {
    Duration.deadline(cco_has_worlds() ? host.lasting(nanoseconds) : nanoseconds, after: now)
  }
}

// MARK: - Objects that store times

// An object that stores times, and may be used by the whole process: the times of a world mean nothing in another one,
// or outside. So such an object keeps the number of the clock by which it counts, and in front of each use asks for
// what stands for it by the caller's clock: itself, or another one that was made there at its first use. What stands
// for an object lives as long as its world.

/// What stands in a world, or outside of worlds, for objects that count by another clock.
final class StandIns: Sendable {
  /// Those of objects that were made in a world, and are used outside.
  ///
  /// They live for ever.
  static let ofProcess = StandIns()
  private static let last = Atomic<UInt>(0)

  let number = StandIns.last.wrappingAdd(1, ordering: .relaxed).newValue
  private let lock = ThreadLock()
  // Sound because it is accessed under `lock`. Each is stored with its object, so that no other object gets the
  // address.
  nonisolated(unsafe) private var table: [ObjectIdentifier: (object: AnyObject, standIn: AnyObject)] = [:]

  fileprivate func find<Object: AnyObject>(_ object: Object, _ make: () -> Object) -> Object {
    if let found = lock.withLock({ table[ObjectIdentifier(object)] }) {
      return unsafeDowncast(found.standIn, to: Object.self)
    }
    let made = make()
    return lock.withLock {
      let found = table[ObjectIdentifier(object)]?.standIn ?? made
      table[ObjectIdentifier(object)] = (object, found)
      return unsafeDowncast(found, to: Object.self)
    }
  }
}

/// The clock by which an object counts that stores times.
struct LocalClockNumber: Sendable {
  private let number: UInt

  /// The clock of the calling code.
  init() { number = cco_has_worlds() ? Host.standIns.number : 0 }

  /// Returns what stands for `object`, which has this number, by the clock of the calling code.
  func standIn<Object: AnyObject>(for object: Object, _ make: () -> Object) -> Object {
    // An object that was made in a world may be used when no world is left.
    guard number != 0 || cco_has_worlds() else { return object }
    let standIns = Host.standIns
    let isOwn = number == standIns.number || number == 0 && standIns === StandIns.ofProcess
    return isOwn ? object : standIns.find(object, make)
  }
}
