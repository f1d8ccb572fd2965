internal import CLinux
import Dispatch
import Glibc
import Synchronization

// All of Dispatch's timers of one clock share one descriptor of the kernel's (timerfd), which Dispatch makes when the first of them
// is set and then keeps. Where the process has no descriptor left at that moment, Dispatch says nothing: it keeps the timer in its
// list, and nothing goes off, also when descriptors are free again, until some other timer is set. Then Dispatch looks at all of
// them: it runs those that are due, and makes the descriptor for the others if it can.
//
// So a first timer, which is of no other use, is set when the first scheduler is made. Where it has not proven that there is a
// descriptor by the time that a real timer is set, a thread sets the first one every few milliseconds until it has. Each time
// Dispatch runs what is due, so timers go off, somewhat late, even while no descriptor is free.
//
//   UNPROVEN -- goes off --> PROVEN for ever
//      |   ^                    ^
//      v   | no thread          | goes off
//      RETRYING ----------------+
//
// What proves it. The first timer goes off also without a descriptor, when another timer is set after it was due. So going off counts
// only if a descriptor could be had right before the first timer was set: then Dispatch has had it as well, a moment later.

final class FirstTimer: @unchecked Sendable {
  // Sound because the flags are atomic, the rest never changes, and Dispatch's objects may be used from any thread.

  /// That of the clock by which schedulers are woken.
  static let shared = FirstTimer { $0.schedule(deadline: .now() + .milliseconds(1)) }

  private let isProven = Atomic<Bool>(false)
  /// Whether a descriptor could be had when the timer was set last.
  private let couldBeMade = Atomic<Bool>(false)
  private let isRetrying = Atomic<Bool>(false)
  private let source: any DispatchSourceTimer
  private let schedule: @Sendable (any DispatchSourceTimer) -> Void

  /// `schedule`: sets the timer to go off soon, by the clock that is meant; each clock has a descriptor of its own.
  init(_ schedule: @escaping @Sendable (any DispatchSourceTimer) -> Void) {
    self.schedule = schedule
    source = DispatchSource.makeTimerSource(queue: DispatchQueue(label: "coroutine.first-timer"))
    source.setEventHandler { [unowned self] in
      if couldBeMade.load(ordering: .acquiring) { isProven.store(true, ordering: .relaxed) }
    }
    set()
    source.activate()
  }

  private func set() {
    couldBeMade.store(clinux_can_make_timer(), ordering: .releasing)
    schedule(source)
  }

  deinit { source.cancel() }

  /// Whether Dispatch has shown that its timers go off.
  var works: Bool { isProven.load(ordering: .relaxed) }

  /// Sees to it that timers that are set from now on, or have been set, go off although no descriptor was free.
  ///
  /// One load as a rule.
  func ensure() {
    guard !works, !isRetrying.exchange(true, ordering: .acquiringAndReleasing) else { return }
    let me = Unmanaged.passRetained(self)
    var thread = pthread_t()
    let code = SignalMask.whileBlocked { pthread_create(&thread, nil, { FirstTimer.retry($0) }, me.toOpaque()) }
    if code == 0 {
      pthread_detach(thread)
    } else {
      // The next one who sets a timer tries again.
      me.release()
      isRetrying.store(false, ordering: .releasing)
    }
  }

  private static func retry(_ argument: UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer? {
    guard let argument else { return nil }
    let timer = Unmanaged<FirstTimer>.fromOpaque(argument).takeRetainedValue()
    while !timer.works {
      usleep(5_000)
      if !timer.works { timer.set() }
    }
    return nil
  }
}
