internal import CLinux
import Synchronization

// The word on which the thread of the watchdog sleeps: it says when the next inspection is.
//
//                      schedule                          the time is over
//   UNSTARTED ------------------------> SOON, LATER -----------------------> INSPECTING
//                                         ^      ^          schedule             |   |
//                  schedule, and a wake-up|      +-------------------------------+   | nothing was scheduled
//                                         +---- NEVER <------------------------------+
//
// SOON and LATER may also replace each other: the last `schedule` counts.
// Only the watchdog's own thread sets LATER, so a thread that sleeps in SOON finds SOON when it wakes.
//
// Invariants
//  1. An inspection begins after every `schedule`. `schedule` exchanges the word. The thread leaves SOON and LATER for
//     INSPECTING, and INSPECTING for NEVER, by compare-and-swap. So it overwrites no SOON or LATER unseen: it inspects
//     after it has seen it, or sees it after the inspection.
//  2. The thread sleeps on the word with the value that it has read. The kernel compares the word when the thread goes
//     to sleep, so a wake-up between the two is not lost. A `schedule` that finds NEVER wakes the thread; so does one
//     that replaces LATER by SOON. In SOON the thread sleeps for a short time at most, and in INSPECTING it is awake.
//     So most calls of `schedule` make no system call. An inspection takes one, and one more for each worker whose
//     descriptors it polls.

struct WatchdogWord: ~Copyable {
  private let state = Atomic<UInt32>(WatchdogWord.unstarted)

  private static var unstarted: UInt32 { 0 }
  private static var inspecting: UInt32 { 1 }
  private static var never: UInt32 { 2 }

  /// When the next inspection is.
  enum Time: UInt32 {
    case soon = 3
    case later = 4
  }

  /// The next step of a caller of `schedule`.
  enum Needed { case nothing, start, wake }

  /// Schedules the next inspection; any thread.
  borrowing func schedule(_ time: Time) -> Needed {
    switch state.exchange(time.rawValue, ordering: .acquiringAndReleasing) {
    case Self.unstarted: .start
    case Self.never: .wake
    case Time.later.rawValue: time == .soon ? .wake : .nothing
    default: .nothing
    }
  }

  /// Wakes the thread.
  borrowing func wake() { withAddress { clinux_futex_wake($0) } }

  /// The time of the next inspection; nil if none is scheduled.
  ///
  /// Called by the thread, as the following are.
  borrowing func scheduled() -> Time? { Time(rawValue: state.load(ordering: .acquiring)) }

  /// Sleeps for `nanoseconds` at most, 0 without a limit, or until something else than `time` is scheduled; may return
  /// early.
  borrowing func sleep(_ time: Time?, atMost nanoseconds: UInt64) {
    withAddress { _ = clinux_futex_wait($0, time?.rawValue ?? Self.never, nanoseconds) }
  }

  /// Begins the inspection, unless another time was scheduled.
  borrowing func begin(_ time: Time) -> Bool { change(time.rawValue, to: Self.inspecting) }

  /// Ends the inspection.
  borrowing func end() { _ = change(Self.inspecting, to: Self.never) }

  private borrowing func change(_ old: UInt32, to new: UInt32) -> Bool {
    state.compareExchange(expected: old, desired: new, ordering: .acquiringAndReleasing).exchanged
  }

  /// Passes the address of the state, which does not move.
  private borrowing func withAddress(_ body: (UnsafePointer<UInt32>) -> Void) {
    withUnsafePointer(to: state) { body(UnsafeRawPointer($0).assumingMemoryBound(to: UInt32.self)) }
  }
}
