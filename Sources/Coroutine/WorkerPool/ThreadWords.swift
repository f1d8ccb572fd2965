internal import CLinux
import Synchronization

// The state of a worker's thread: it says whether a drain was submitted, and what the submitting thread must do.
//
//            submit                       the thread                   nothing to do
//   ABSENT <---------> SUBMITTED <===> RUNNING ----------> SLEEPING or POLLING ------> RUNNING
//     ^                    ^      submit  |                |      |    the timer is due, or a descriptor is ready
//     |                    |              |                |      | submit, and a wake-up
//     |                    +--------------+----------------|------+
//     +----------------------------------------------------+ a spare worker's thread has slept for long, and ends
//
// ABSENT: there is no thread; the submission starts one, and goes back to ABSENT if it cannot. SLEEPING: the thread
// sleeps on this word, as a futex. POLLING: it sleeps in its poller (Poller.swift).
//
// Invariants
//  1. Every submission is followed by a drain. `submit` exchanges SUBMITTED for the old state; the thread exchanges
//     RUNNING for it, and drains if it finds SUBMITTED. Both are read-modify-writes of one word, so no SUBMITTED is
//     overwritten unseen.
//  2. The thread sleeps only in SLEEPING or POLLING, which it reaches from RUNNING by compare-and-swap: a submission
//     before that makes it fail. A submission after it finds that state, and wakes the thread in the way that the state
//     names. The kernel compares the word when the thread goes to sleep, and it keeps the event of a signal until the
//     thread polls. So a wake-up between the change of the word and the sleep is not lost.
//  3. Of several submissions, one finds the thread asleep. So one wake-up, a system call, ends one sleep. A thread that
//     is awake gets none.
//  4. A thread ends only after it has changed SLEEPING to ABSENT by compare-and-swap. A submission before that makes it
//     fail, and the thread goes on. Of the submissions after it, one finds ABSENT and starts a thread. So there is one
//     thread at most that drains.

struct WorkerWord: ~Copyable {
  private let state = Atomic<UInt32>(WorkerWord.absent)

  private static var absent: UInt32 { 0 }
  private static var submitted: UInt32 { 1 }
  private static var running: UInt32 { 2 }
  private static var sleeping: UInt32 { 3 }
  private static var polling: UInt32 { 4 }

  /// The next step of a submitting thread.
  enum Needed { case nothing, start, wake, signal }

  /// Submits a drain; any thread.
  borrowing func submit() -> Needed {
    switch state.exchange(Self.submitted, ordering: .acquiringAndReleasing) {
    case Self.absent: .start
    case Self.sleeping: .wake
    case Self.polling: .signal
    default: .nothing
    }
  }

  /// Whether there is a thread, or one is being started; any thread.
  var hasThread: Bool { state.load(ordering: .acquiring) != Self.absent }

  /// Takes back the submission that should have started a thread, and could not.
  ///
  /// A store: until the inbox is idle again, no other thread submits.
  borrowing func withdraw() { state.store(Self.absent, ordering: .releasing) }

  /// Ends a sleep, and takes a submission; returns whether there was one.
  ///
  /// Called by the thread, as the following are.
  borrowing func begin() -> Bool {
    state.exchange(Self.running, ordering: .acquiringAndReleasing) == Self.submitted
  }

  /// Says that the thread is about to sleep in its poller, or on this word; returns false if it must not.
  borrowing func mayRest(inPoller: Bool) -> Bool {
    state.compareExchange(
      expected: Self.running,
      desired: inPoller ? Self.polling : Self.sleeping,
      ordering: .acquiringAndReleasing
    ).exchanged
  }

  /// Sleeps on the word unless a drain was submitted; may return early.
  ///
  /// Returns false only if the time is over. With 0, the sleep has no limit.
  @discardableResult
  borrowing func sleep(atMost nanoseconds: UInt64) -> Bool {
    withAddress { clinux_futex_wait($0, Self.sleeping, nanoseconds) }
  }

  /// Says that the thread, which has slept on the word, ends; returns false if it must not.
  borrowing func mayEnd() -> Bool {
    state.compareExchange(expected: Self.sleeping, desired: Self.absent, ordering: .acquiringAndReleasing).exchanged
  }

  /// Wakes the thread that sleeps on the word.
  borrowing func wake() { withAddress { clinux_futex_wake($0) } }

  /// Passes the address of the state, which does not move.
  private borrowing func withAddress<Output>(_ body: (UnsafePointer<UInt32>) -> Output) -> Output {
    withUnsafePointer(to: state) { body(UnsafeRawPointer($0).assumingMemoryBound(to: UInt32.self)) }
  }
}

// MARK: - The word of the watchdog

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

  /// Says that the thread could not be started: the next `schedule` tries again.
  borrowing func withdraw() { state.store(Self.unstarted, ordering: .releasing) }

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
