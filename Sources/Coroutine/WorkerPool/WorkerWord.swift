internal import CLinux
import Synchronization

// The state of a worker's thread: it says whether a drain was submitted, and what the submitting thread must do.
//
//            submit                       the thread                   nothing to do
//   ABSENT ----------> SUBMITTED <===> RUNNING ----------> SLEEPING or POLLING ------> RUNNING
//     ^                    ^      submit  |                |      |    the timer is due, or a descriptor is ready
//     |                    |              |                |      | submit, and a wake-up
//     |                    +--------------+----------------|------+
//     +----------------------------------------------------+ a spare worker's thread has slept for long, and ends
//
// ABSENT: there is no thread; the submission starts one. SLEEPING: the thread sleeps on this word, as a futex. POLLING:
// it sleeps in its poller (Poller.swift).
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
