#if NIO
import Coroutine
import Dispatch
import NIOCore
import Synchronization

// The end of an event loop that has coroutines.
//
// NIO tells nobody that a loop is shut down. But the last thing that a loop does on its thread is to fail what is
// scheduled on it. So a task is scheduled for the end of time, the sentinel. When it fails, the loop has closed its
// channels, waits for no events any more, and repeats two steps until both find nothing: run what was executed, fail
// what was scheduled.
//
// In there the pump takes over, on the same thread, as the last part of the loop:
//
//   1. All live coroutines are cancelled, with EventLoopError.shutdown; later ones never begin (Scheduler+End.swift).
//   2. It makes the drains that are submitted, and fires due timers.
//   3. If something ran, it has itself executed by the loop, so that NIO's calls and callbacks that this has caused run
//      as well; then it goes on with 2. At most `Pumping.rounds` times, because NIO ends the process after 1,000.
//   4. If nothing ran, NIO has nothing more to say, and only other threads and timers can wake a coroutine: the pump
//      waits for them. So the shutdown of a group waits for the coroutines of its loops.
//   5. When no coroutine is live and no drain is submitted, one compare-and-swap of the word makes it CLOSED. If a
//      submit comes first, the compare-and-swap fails, and 2 follows. If it comes later, it sees CLOSED.
//
// A live coroutine ends on the loop's own thread, so the pump sees that by itself. One that has left for a dispatch
// queue (`co_switch`) is that queue's: the shutdown neither cancels it nor waits for it.

struct Pumping {
  static var rounds: Int { 400 }

  /// The number of times that the pump has had itself executed.
  var round = 0
  /// Whether something ran since then.
  var hasRun = false
}

extension EventLoopHost {
  /// Takes the loop's first call: installs the sentinel, unless the loop has refused an earlier call.
  func open(_ drain: HostedDrain) {
    let old = word.bitwiseOr(Word.open, ordering: .acquiringAndReleasing).oldValue
    guard old & Word.state == Word.fresh else { return }
    installSentinel(drain)
  }

  private func installSentinel(_ drain: HostedDrain) {
    let sentinel = loop.scheduleTask(deadline: .distantFuture) {}
    sentinel.futureResult.whenComplete { result in
      switch result {
      case .failure: self.close(drain)
      // Only a loop for tests runs its tasks before their time.
      case .success: self.installSentinel(drain)
      }
    }
  }

  /// Called on the loop's thread, once, when the loop is about to end.
  private func close(_ drain: HostedDrain) {
    drain.end(EventLoopError.shutdown)
    // From OPEN to CLOSING: no other thread changes the state of a loop that is open.
    word.bitwiseXor(Word.open ^ Word.closing, ordering: .acquiringAndReleasing)
    pump(drain)
  }

  private func pump(_ drain: HostedDrain) {
    while true {
      if takeSubmitted() {
        run { drain() }
        pumping.hasRun = true
      } else if let earliest = timers.last, earliest <= loop.now {
        removeTimers(until: earliest)
        run { drain.timerFired() }
        pumping.hasRun = true
      } else if !drain.hasLiveJobs {
        if word.compareExchange(
          expected: Word.closing,
          desired: Word.closed,
          ordering: .acquiringAndReleasing
        ).exchanged {
          return finish(drain)
        }
      } else if pumping.hasRun, pumping.round < Pumping.rounds, isSelectable {
        pumping.round += 1
        pumping.hasRun = false
        return loop.execute { self.pump(drain) }
      } else {
        let delay = timers.last.map { DispatchTime.now() + .nanoseconds(Int(max(0, ($0 - loop.now).nanoseconds))) }
        _ = pumpWakeUp.wait(timeout: delay ?? .distantFuture)
      }
    }
  }

  /// Hands over to the successor.
  private func finish(_ drain: HostedDrain) {
    LoopTable.remove(self)
    if let earliest = timers.last { scheduleAfterShutdown(drain, earliest - loop.now) }
  }

  // MARK: After the end

  /// Called when the loop has dropped a call, on any thread.
  func wasRefused(_ drain: HostedDrain) {
    // If the state is OPEN, the sentinel is about to end; what is live can end now.
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
