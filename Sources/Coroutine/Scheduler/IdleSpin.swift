import CCoroutine
import Synchronization

// Adaptive spinning. Before a scheduler's drain goes idle, it polls the inbox for up to 10 µs if messages have recently
// arrived faster than a thread wake-up takes.
//
// Reason. Waking a sleeping thread costs the sender a system call and the woken thread a switch by the kernel, several
// microseconds together. Two queues whose coroutines answer each other would pay that in each direction, for every
// message, and each would get its answer a fraction of a microsecond after it went to sleep.
//
//   DIRECT    goes idle at once       -- `needed` quick returns in a row ----------> SPINNING
//   SPINNING  polls, then goes idle   -- one failed poll, `needed` doubles --------> DIRECT
//                                     -- `streak` successful polls: `needed` returns to its first value
//
// - A return is quick if the drain is started again less than `quick` after it went idle.
// - A poll lasts about as long as waking the other side takes, because during the first poll the other side is still
//   asleep. Later polls end within a microsecond.
// - The doubling bounds the cost if polling never succeeds, as on a machine without a spare processor: one poll in 128
//   returns.
// - If the process may use only one processor, no thread could send anything during a poll, so it never polls.
//
// For other threads, spinning is the busy state of Inbox.swift, some microseconds longer. Successful polls occupy the
// queue as ready jobs do. So no poll begins after the end of the time slice (Scheduler+Drain.swift), and other blocks
// of the queue wait for a time slice and `duration` at most.
//
// Measured with an idle second processor: a coroutine's hop to another queue takes 360 ns, and 1,490 ns without
// spinning (two threads pass a bare block in 620). A ping-pong round trip over two queues takes 440 ns, and 4,640 ns
// without.

struct IdleSpin {
  /// The time after going idle within which a restart counts as a quick return, in ns.
  static var quick: UInt64 { 25_000 }
  static var streak: UInt8 { 8 }
  static var fewest: UInt16 { 2 }
  static var most: UInt16 { 128 }

  /// The duration of a poll, in ns.
  var duration: UInt64 = 10_000
  /// The number of quick returns in a row that are needed before it polls.
  var needed = IdleSpin.fewest
  private var returns: UInt16 = 0
  private var paid: UInt8 = 0
  /// The time at which the last drain went idle; 0 if it ended with its time slice, and so gives no information.
  private var wentIdle: UInt64 = 0

  /// Whether to poll before going idle.
  var isWorthwhile: Bool { returnsWanted == 0 && Processors.usable > 1 }

  /// The number of quick returns that are still missing.
  var returnsWanted: Int { Int(needed) - Int(min(returns, needed)) }

  /// Records that a drain begins.
  mutating func begins(_ now: UInt64) {
    guard wentIdle != 0 else { return }
    returns = now &- wentIdle < Self.quick ? min(returns + 1, Self.most) : 0
    wentIdle = 0
  }

  /// Records that a message came during the poll.
  mutating func succeeded() {
    paid = min(paid + 1, Self.streak)
    if paid == Self.streak { needed = Self.fewest }
  }

  /// Records that no message came during the poll.
  mutating func failed() {
    (returns, paid) = (0, 0)
    needed = min(max(1, needed) * 2, Self.most)
  }

  /// Records that the drain is about to go idle.
  mutating func goesIdle(_ now: UInt64) { wentIdle = now }
}

extension Scheduler {
  /// Polls the inbox if that is worthwhile, and returns whether a message has come or a timer is due.
  ///
  /// Called by a drain that has nothing to do. Workers do not spin: they try to steal work, and sleep if no worker has
  /// any. Loops of other libraries do not either (Host.swift).
  func spin(_ carrier: UnsafeMutablePointer<Carrier>) -> Bool {
    guard host.mayPoll, readyQueue.pointee.workerPool == nil else {
      // For the histogram of runs alone, so not each time.
      if wakeUps % Samples.wakeUps == 0 { readClock(carrier) }
      return false
    }
    readClock(carrier)
    if idleSpin.isWorthwhile, carrier.pointee.now < timeSlice.end {
      let end = min(carrier.pointee.now &+ idleSpin.duration, nextTimer.load(ordering: .relaxed))
      while carrier.pointee.now < end {
        // Several inbox reads for each clock read, which costs as much as several of them.
        for _ in 0..<8 {
          if inbox.hasMessages {
            idleSpin.succeeded()
            return true
          }
          cco_relax()
        }
        carrier.pointee.now = clock
      }
      // A timer that ends the poll makes it successful. Going idle now would mean waiting for the host's timer, which
      // may be paused.
      if nextTimer.load(ordering: .relaxed) <= carrier.pointee.now { return true }
      idleSpin.failed()
    }
    idleSpin.goesIdle(carrier.pointee.now)
    return false
  }
}
