#if NIO
import Coroutine
import Dispatch
import NIOCore
import NIOPosix
import Synchronization

// Drives the coroutines of one event loop.
//
//            first call on the loop          the sentinel has ended          no coroutine is live,
//            installs the sentinel           (EventLoopHost+Shutdown.swift)  and no drain is due
//   FRESH ------------------------> OPEN -------------------------> CLOSING ----------------------> CLOSED
//     |                                                                                               ^
//     +---- the loop has refused a call: it was shut down before it ran any coroutine ----------------+
//
//   state     who makes the drains
//   FRESH     none yet: a drain waits until the loop runs its first call
//   OPEN      the loop: by `execute`, at the end of a channel's callback, or by a timer
//   CLOSING   the loop's thread, in the last function that the loop calls (pump)
//   CLOSED    the successor, a Dispatch queue. No coroutine is live, and none can start (Liveness.swift).
//             Only refused jobs, handlers, and timers that outlive the loop remain
//
// Invariants
//  1. The scheduler submits a drain only if none is submitted or running (Inbox.swift). `submitted`, a bit of `word`,
//     is set by submit, and cleared by the code that makes the drain, immediately before it. At the end of a read, the
//     loop begins a drain that was not submitted (`wake`). It does so only in the state OPEN, and the scheduler
//     allows it by the same transition: so there is still one drain at most.
//  2. The state and that bit are one atomic word. So a submit either sees the new state, or its bit is seen by the
//     thread that has changed the state: no drain is lost and none is made twice.
//  3. After each submit at least one attempt to make the drain follows, on a thread that may: a call of the loop, the
//     end of the current callback or of the work after a drain, the pump or the successor. An attempt that finds the
//     bit clear does nothing.
//  4. A loop that was shut down drops a call silently. Then the call's object is released unused, and its deinit
//     reports that (Call). In the state OPEN an early cancellation is enough, because the sentinel fails on the loop's
//     thread after every call that the loop refuses.
//  5. The host is retained by its scheduler, so it does not retain its drain, which holds the scheduler. LoopTable
//     retains both until the state is CLOSED. Before that, the loop's thread uses the host's drain. Other threads, and
//     all threads later, use the drain that the scheduler has passed to `submit` or `schedule`.
//
// The loop's thread is in one phase, which `during` alone changes. Phases nest, because a loop for tests may be run
// within a callback. The phase decides who makes a drain that is submitted on the loop's thread:
//
//   phase        what runs                                  who makes the submitted drain
//   idle         the loop's own work, or a coroutine that   a call of the loop
//                has just been started immediately
//   callback     a callback of a channel                    the end of the callback; in a pause, its timer
//   draining     coroutines                                 a pause, or a call of a loop that polls nothing
//   afterDrain   reads and flushes that a drain has left    the same
//
// Why a drain that has used up its time slice continues by a timer. Before NIO polls its descriptors, it runs all calls
// that were executed within calls, and all due timers, until there are no more. A coroutine that is always ready would
// starve all channels of the loop. So the timer must not be due when NIO checks its timers next, after this call has
// returned. `pause` is many times longer than that. It costs a loop that is never idle a tenth of its time.

final class EventLoopHost: CoroutineHost, @unchecked Sendable {
  // Sound because `word` is atomic, the constants are Sendable, and everything under "State of the loop's thread" is
  // accessed on that thread only, which runs one call at a time.

  enum Word {
    static var state: UInt8 { 3 }
    static var fresh: UInt8 { 0 }
    static var open: UInt8 { 1 }
    static var closing: UInt8 { 2 }
    static var closed: UInt8 { 3 }
    static var submitted: UInt8 { 4 }
  }

  /// The time between two drains of which the first has used up its time slice.
  private static let pause = TimeAmount.microseconds(_isDebugAssertConfiguration() ? 100 : 20)

  let loop: any EventLoop
  let coroutineLabel: String
  /// System time minus loop time, for example of a loop for tests; nil if the loop uses the system's clock.
  private let lag: UInt64?
  let word = Atomic<UInt8>(Word.fresh)
  /// The queue that makes the drains after the loop's end.
  let successor = DispatchQueue(label: "coroutine.nio.after-shutdown")
  /// Signalled by each submit while the pump waits.
  let pumpWakeUp = DispatchSemaphore(value: 0)

  // MARK: State of the loop's thread

  enum Phase { case idle, callback, draining, afterDrain }

  @exclusivity(unchecked) private(set) var phase = Phase.idle
  /// Whether a timer will make a submitted drain: the last one has used up its time slice, or the work after it has
  /// woken coroutines.
  @exclusivity(unchecked) private(set) var isPausing = false
  /// The deadlines of the timers that the loop has, the earliest last.
  @exclusivity(unchecked) var timers: [NIODeadline] = []
  /// The channels that have something to do when the drain has ended, each retained until then.
  @exclusivity(unchecked) var listed: [Unmanaged<ChannelCore>] = []
  /// The progress of the pump; see EventLoopHost+Shutdown.swift.
  @exclusivity(unchecked) var pumping = Pumping()
  /// The owner of the drain; set before another thread has the host.
  // Sound because LoopTable retains it until the state is CLOSED, and it is used before that only (invariant 5).
  @exclusivity(unchecked) private var coroutines: Unmanaged<LoopCoroutines>?

  init(_ loop: any EventLoop) {
    self.loop = loop
    let address = UInt(bitPattern: Unmanaged.passUnretained(loop as AnyObject).toOpaque())
    coroutineLabel = "\(type(of: loop)) 0x" + String(address, radix: 16)
    // A loop whose time is the system's answers with a time between the two others.
    let (before, now, after) = (NIODeadline.now(), loop.now, NIODeadline.now())
    lag = before <= now && now <= after ? nil : before.uptimeNanoseconds &- now.uptimeNanoseconds
  }

  /// Begins at the system's time, because a deadline goes along with a coroutine that moves to another scheduler.
  var coroutineTime: UInt64? { lag.map { loop.now.uptimeNanoseconds &+ $0 } }

  var state: UInt8 { word.load(ordering: .acquiring) & Word.state }

  var isCurrentForCoroutines: Bool { state != Word.closed && loop.inEventLoop }

  /// Whether the loop is a real one, which polls descriptors on its own thread.
  var isSelectable: Bool { MultiThreadedEventLoopGroup.currentEventLoop === loop }

  // MARK: The drain and the phase, on the loop's thread

  /// Stores the owner of the drain, once, when the scheduler has been made.
  func attach(_ coroutines: LoopCoroutines) { self.coroutines = .passUnretained(coroutines) }

  /// The drain of the scheduler, retained; not after the end.
  var drain: HostedDrain { coroutines.unsafelyUnwrapped._withUnsafeGuaranteedRef { $0.drain } }

  /// Runs coroutines: `body` makes the drain.
  @inline(__always)
  func draining<R>(_ body: (HostedDrain) -> R) -> R {
    // Not the property above, which would retain the scheduler for each drain.
    during(.draining) { coroutines.unsafelyUnwrapped._withUnsafeGuaranteedRef { body($0.drain) } }
  }

  /// Runs `body` in a phase.
  @inline(__always)
  func during<R>(_ inner: Phase, _ body: () -> R) -> R {
    let outer = phase
    phase = inner
    defer { phase = outer }
    return body()
  }

  /// Continues after a pause, in which the loop polls its descriptors.
  ///
  /// There is one such timer at a time, because a second one would be due when the drain of the first one ends.
  func pause() {
    if isPausing { return }
    isPausing = true
    loop.scheduleTask(in: Self.pause) {
      self.isPausing = false
      self.drainIfSubmitted()
    }
  }
}
#endif
