import CCoroutine
import Synchronization

// Why a drain that has run out of work does not always give its queue back at once.
//
// To wake a sleeping thread costs the waker a system call and the woken one a switch of the kernel's, several microseconds
// together. Two queues whose coroutines answer each other would pay that in each direction, for every message, and each
// would have its answer a fraction of a microsecond after it went to sleep. So a drain whose answers come back quickly
// looks at its inbox for a little longer before it goes idle, and is then found awake.
//
//   DIRECT    goes idle at once         -- `needed` quick returns in a row --> LINGERING
//   LINGERING looks, then goes idle     -- one look in vain, `needed` doubles --> DIRECT
//                                       -- `streak` looks that paid --> `needed` as at first
//
// A return is quick when the drain is started again less than `quick` after it went idle. A look lasts about as long as
// waking the other side takes, because in the first one it is still asleep; the later ones end within a microsecond. The
// doubling bounds what looks can cost where they never pay, as on a machine without a processor to spare: one look in
// 128 returns. Where the process may use one processor only, nobody could send anything meanwhile: it never looks.
//
// Nothing about who wakes whom depends on this: it is the busy state of Inbox.swift, some microseconds longer. Looks that pay
// keep the queue as ready jobs would, so none begins when the slice is over (Scheduler+Drain.swift): the other blocks of the queue wait
// for a slice and `patience` at most. Measured with an idle second processor: a coroutine's hop to another
// queue 1,490 to 360 ns (two threads hand a bare block over in 620), ping-pong over two queues 4,640 to 440 a round trip.

struct IdleSpin {
  /// A drain that starts again so soon after it went idle may well have been waited for, in ns.
  static var quick: UInt64 { 25_000 }
  static var streak: UInt8 { 8 }
  static var fewest: UInt16 { 2 }
  static var most: UInt16 { 128 }

  /// How long it looks, in ns.
  var patience: UInt64 = 10_000
  /// So many quick returns in a row before it looks.
  var needed = IdleSpin.fewest
  private var returns: UInt16 = 0
  private var paid: UInt8 = 0
  /// 0: the last drain ended because its slice was over, so the next one says nothing.
  private var wentIdle: UInt64 = 0

  /// Whether it is worth looking before going idle.
  var isWorthwhile: Bool { returnsWanted == 0 && Processors.usable > 1 }

  /// How many quick returns are wanting.
  var returnsWanted: Int { Int(needed) - Int(min(returns, needed)) }

  /// A drain begins.
  mutating func begins(_ now: UInt64) {
    guard wentIdle != 0 else { return }
    returns = now &- wentIdle < Self.quick ? min(returns + 1, Self.most) : 0
    wentIdle = 0
  }

  /// Something came while it looked.
  mutating func succeeded() {
    paid = min(paid + 1, Self.streak)
    if paid == Self.streak { needed = Self.fewest }
  }

  /// Nothing came.
  mutating func failed() {
    (returns, paid) = (0, 0)
    needed = min(max(1, needed) * 2, Self.most)
  }

  /// The drain is about to go idle.
  mutating func goesIdle(_ now: UInt64) { wentIdle = now }
}

extension Scheduler {
  /// With nothing to do: whether something has come, or fallen due, after a look at the inbox, where that was worthwhile.
  ///
  /// The drain. Workers do not linger: they go to the others for work, and sleep when nobody has any.
  func spin(_ carrier: UnsafeMutablePointer<Carrier>) -> Bool {
    guard simulation == nil, readyQueue.pointee.workerPool == nil else { return false }
    carrier.pointee.now = clock
    if idleSpin.isWorthwhile, carrier.pointee.now < timeSlice.end {
      let end = min(carrier.pointee.now &+ idleSpin.patience, nextTimer.load(ordering: .relaxed))
      while carrier.pointee.now < end {
        // Rarely at the clock, which costs as much as several looks.
        for _ in 0..<8 {
          if inbox.hasMessages {
            idleSpin.succeeded()
            return true
          }
          cco_relax()
        }
        carrier.pointee.now = clock
      }
      // Ended by a timer, it has not been in vain: to go idle now would be to wait for the alarm, which may be resting.
      if nextTimer.load(ordering: .relaxed) <= carrier.pointee.now { return true }
      idleSpin.failed()
    }
    idleSpin.goesIdle(carrier.pointee.now)
    return false
  }
}
