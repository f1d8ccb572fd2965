#if NIO
@_spi(Hosting) import Coroutine
import Dispatch
import NIOCore
import Synchronization

// The end of an event loop that has coroutines.
//
// NIO reports the shutdown of a loop to no one. But the last action of a loop on its thread is to fail its scheduled
// tasks. So the sentinel, a task, is scheduled for the distant future. When it fails, the loop has closed its channels,
// and waits for no more events. It repeats two steps until both find nothing: run the executed calls, fail the
// scheduled tasks.
//
// The failure of the sentinel calls the pump, on the same thread. The pump is the last part of the loop:
//
//   1. All live coroutines are cancelled, with EventLoopError.shutdown; later ones never begin
//      (Liveness.swift).
//   2. It makes the drains that are submitted, and fires due timers.
//   3. If something ran, it passes itself to the loop's `execute`, so that the calls and callbacks of NIO that were
//      caused run as well. Then it continues with 2. It does so at most `Pumping.rounds` times, because NIO ends the
//      process after 1,000 rounds.
//   4. If nothing ran, only other threads and timers can wake a coroutine, and the pump waits for them. So the shutdown
//      of a group waits for the coroutines of its loops.
//   5. When no coroutine is live and no drain is submitted, one compare-and-swap of the word makes it CLOSED. If a
//      submit comes first, the compare-and-swap fails, and 2 follows. If it comes later, it sees CLOSED.
//
// A live coroutine ends on the loop's own thread, so the pump sees its end without a signal. A coroutine that has moved
// to a dispatch queue (`co_switch`) belongs to that queue: the shutdown neither cancels it nor waits for it.

/// The progress of the pump.
struct Pumping {
  static var rounds: Int { 400 }

  /// The number of times that the pump has passed itself to the loop.
  var round = 0
  /// Whether a drain or a timer ran since the last time.
  var hasRun = false
}

extension EventLoopHost {
  /// Opens the host in the loop's first call: installs the sentinel, unless the loop has refused an earlier call.
  func open() {
    let old = word.bitwiseOr(Word.open, ordering: .acquiringAndReleasing).oldValue
    guard old & Word.state == Word.fresh else { return }
    installSentinel()
  }

  private func installSentinel() {
    let sentinel = loop.scheduleTask(deadline: .distantFuture) {}
    sentinel.futureResult.whenComplete { result in
      switch result {
      case .failure: self.close()
      // Only a loop for tests runs its tasks before they are due.
      case .success: self.installSentinel()
      }
    }
  }

  /// Called on the loop's thread, once, when the loop is about to end.
  private func close() {
    drain.end(EventLoopError.shutdown)
    // From OPEN to CLOSING: no other thread changes the state of a loop that is open.
    word.bitwiseXor(Word.open ^ Word.closing, ordering: .acquiringAndReleasing)
    pump()
  }

  private func pump() {
    while true {
      if takeSubmitted() {
        run { $0() }
        pumping.hasRun = true
      } else if let earliest = timers.last, earliest <= loop.now {
        removeTimers(until: earliest)
        run { $0.timerFired() }
        pumping.hasRun = true
      } else if !drain.hasLiveJobs {
        if word.compareExchange(
          expected: Word.closing,
          desired: Word.closed,
          ordering: .acquiringAndReleasing
        ).exchanged {
          return finish()
        }
      } else if pumping.hasRun, pumping.round < Pumping.rounds, isSelectable {
        pumping.round += 1
        pumping.hasRun = false
        return loop.execute { self.pump() }
      } else {
        let delay = timers.last.map { DispatchTime.now() + .nanoseconds(Int(max(0, ($0 - loop.now).nanoseconds))) }
        _ = pumpWakeUp.wait(timeout: delay ?? .distantFuture)
      }
    }
  }

  /// Ends the host: the successor makes all later drains.
  private func finish() {
    // The table may have held the last reference.
    let drain = drain
    LoopTable.remove(self)
    if let earliest = timers.last { scheduleAfterShutdown(drain, earliest - loop.now) }
  }

  // MARK: After the end, with the drain of a submit or of a schedule

  /// Called when the loop has dropped a call, on any thread.
  func wasRefused(_ drain: HostedDrain) {
    // If the state is OPEN, the sentinel is about to fail; the live coroutines may be cancelled before that.
    drain.end(EventLoopError.shutdown)
    while true {
      let old = word.load(ordering: .acquiring)
      guard old & Word.state == Word.fresh else { return }
      if word.compareExchange(expected: old, desired: old | Word.closed, ordering: .acquiringAndReleasing).exchanged {
        break
      }
    }
    LoopTable.remove(self)
    successor.async { self.drainAfterShutdown(drain) }
  }

  func drainAfterShutdown(_ drain: HostedDrain) {
    if takeSubmitted() { drain() }
  }

  func scheduleAfterShutdown(_ drain: HostedDrain, _ delay: TimeAmount) {
    let nanoseconds = Int(max(0, delay.nanoseconds))
    successor.asyncAfter(deadline: .now() + .nanoseconds(nanoseconds)) { drain.timerFired() }
  }
}
#endif
