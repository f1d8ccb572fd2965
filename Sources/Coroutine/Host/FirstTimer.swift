internal import CLinux
import Dispatch
import Glibc
import Synchronization

// A workaround for Dispatch timers that never fire. All Dispatch timers of one clock share one kernel descriptor
// (timerfd), which Dispatch creates when the first of them is set, and then keeps. If the process has no free
// descriptor at that moment, Dispatch reports nothing: it keeps the timer in its list, and no timer fires, even after
// descriptors are free again, until another timer is set. Then Dispatch checks all of them: it runs the due ones, and
// creates the descriptor for the others if it can.
//
// Dispatch needs two more descriptors, before its first timer or source of any kind: for epoll and an eventfd. If the
// process has none free for these, Dispatch ends it with a trap. This file cannot prevent that, because Dispatch does
// not reveal whether it has them.
//
// Therefore a first timer, without any other use, is set when the first scheduler is created. If it has not proven that
// there is a descriptor by the time that a real timer is set, a thread sets it again every few milliseconds until it
// has. Each time Dispatch runs what is due, so timers fire, somewhat late, even while no descriptor is free.
//
//   UNPROVEN -- fires --> PROVEN for ever
//      |   ^                 ^
//      v   | no thread       | fires
//      RETRYING -------------+
//
// The proof. The first timer also fires without a descriptor, when another timer is set after it was due. So firing
// counts only if a descriptor could be created right before the first timer was set: then Dispatch has created it as
// well, a moment later.

final class FirstTimer: @unchecked Sendable {
  // Sound because the flags are atomic, everything else is constant, and Dispatch's objects may be used on any thread.

  /// The first timer of the clock that schedulers use.
  static let shared = FirstTimer { $0.schedule(deadline: .now() + .milliseconds(1)) }

  private let isProven = Atomic<Bool>(false)
  /// Whether a descriptor could be created when the timer was last set.
  private let couldBeMade = Atomic<Bool>(false)
  private let isRetrying = Atomic<Bool>(false)
  private let source: any DispatchSourceTimer
  private let schedule: @Sendable (any DispatchSourceTimer) -> Void

  /// `schedule` sets the timer to fire soon, on the clock in question; each clock has a descriptor of its own.
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

  /// Whether the timer has proven that Dispatch's timers fire.
  var works: Bool { isProven.load(ordering: .relaxed) }

  /// Makes sure that timers fire, those set from now on and earlier ones, even if no descriptor was free.
  ///
  /// Usually one load.
  func ensure() {
    guard !works, !isRetrying.exchange(true, ordering: .acquiringAndReleasing) else { return }
    let code = DetachedThread.start("co-first-timer") { [self] in
      while !works {
        usleep(5_000)
        if !works { set() }
      }
    }
    // The next caller tries again.
    if code != 0 { isRetrying.store(false, ordering: .releasing) }
  }
}
