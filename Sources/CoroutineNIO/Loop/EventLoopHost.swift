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
//   CLOSED    the successor, a Dispatch queue. No coroutine is live, and none can start (Scheduler+HostEnded.swift).
//             Only refused jobs, handlers, and timers that outlive the loop remain
//
// Invariants
//  1. The scheduler submits a drain only if none is submitted or running (Inbox.swift). `submitted`, a bit of `word`,
//     is set by submit, and cleared by the code that makes the drain, immediately before it. At the end of a read, the
//     loop begins a drain that nobody has submitted (`wake`). It does so only in the state OPEN, and the scheduler
//     allows it by the same transition: so there is still one drain at most.
//  2. The state and that bit are one atomic word. So a submit either sees the new state, or its bit is seen by the
//     thread that has changed the state: no drain is lost and none is made twice.
//  3. After each submit at least one attempt to make the drain follows, on a thread that may: a call of the loop, the
//     end of the current callback or of the work after a drain, the pump or the successor. An attempt that finds the
//     bit clear does nothing.
//  4. A loop that was shut down drops a call silently. Then the call's object is released unused, and its deinit
//     reports that (Call). In the state OPEN an early cancellation is enough, because the sentinel fails on the loop's
//     thread after every call that the loop refuses.
//
// Why a woken coroutine runs in the same tick. A coroutine that is woken on the loop's thread, outside a drain, runs in
// one of two places:
// - in a call of `execute`, which NIO runs before it waits for events again;
// - at the end of the channel callback that has woken it. Then it requests its next read before NIO removes its
//   interest in the descriptor, which saves two system calls a request.
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
  /// What the loop's time lacks to the system's, if it has a time of its own, as a loop for tests has.
  private let lag: UInt64?
  let word = Atomic<UInt8>(Word.fresh)
  /// The queue that makes the drains after the loop's end.
  let successor = DispatchQueue(label: "coroutine.nio.after-shutdown")
  /// Signalled by each submit while the pump waits.
  let pumpWakeUp = DispatchSemaphore(value: 0)

  // MARK: State of the loop's thread

  /// Whether a callback of a channel runs, or the work that channels have after a drain; a submitted drain is made at
  /// its end.
  @exclusivity(unchecked) private var isInCallback = false
  @exclusivity(unchecked) private(set) var isDraining = false
  /// Whether a timer will make a submitted drain: the last one has used up its time slice, or the work after it has
  /// woken coroutines.
  @exclusivity(unchecked) private var isPausing = false
  /// The deadlines of the timers that the loop has, the earliest last.
  @exclusivity(unchecked) var timers: [NIODeadline] = []
  /// The channels that have something to do when the drain has ended, each retained until then.
  @exclusivity(unchecked) private var listed: [Unmanaged<ChannelCore>] = []
  /// The progress of the pump; see EventLoopHost+Shutdown.swift.
  @exclusivity(unchecked) var pumping = Pumping()

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

  // MARK: Drains

  func submit(_ drain: HostedDrain) {
    let old = word.bitwiseOr(Word.submitted, ordering: .acquiringAndReleasing).oldValue
    switch old & Word.state {
    case Word.closed: successor.async { self.drainAfterShutdown(drain) }
    case Word.closing: pumpWakeUp.signal()
    case Word.open where loop.inEventLoop:
      if isInCallback { return }
      if isDraining { drainLater(drain) } else { call(drain) }
    default: call(drain)
    }
  }

  /// Continues after a pause, in which the loop polls its descriptors.
  ///
  /// There is one such timer at a time, because a second one would be due when the drain of the first one ends.
  private func pause(_ drain: HostedDrain) {
    if isPausing { return }
    isPausing = true
    loop.scheduleTask(in: Self.pause) {
      self.isPausing = false
      self.drainIfSubmitted(drain)
    }
  }

  private func call(_ drain: HostedDrain) {
    let call = Call(self, drain)
    loop.execute { call.run() }
  }

  /// Whether the loop is a real one, which polls descriptors on its own thread.
  var isSelectable: Bool { MultiThreadedEventLoopGroup.currentEventLoop === loop }

  /// Makes the submitted drain, if it has not been made.
  ///
  /// Called by the loop.
  func drainIfSubmitted(_ drain: HostedDrain) {
    if state == Word.fresh { open(drain) }
    if state != Word.closed, takeSubmitted() {
      run(drain) { drain() }
      pumping.hasRun = true
    }
  }

  /// Clears the bit `submitted`; returns whether it was set, and the caller must make the drain.
  func takeSubmitted() -> Bool {
    word.bitwiseAnd(~Word.submitted, ordering: .acquiringAndReleasing).oldValue & Word.submitted != 0
  }

  /// Runs coroutines on the loop's thread, and then reads from and flushes the channels that they have used.
  func run(_ drain: HostedDrain, _ body: () -> Void) {
    isDraining = true
    body()
    isDraining = false
    if !listed.isEmpty { continueListed(drain) }
  }

  private func continueListed(_ drain: HostedDrain) {
    // A channel may call back synchronously. What that wakes runs later: if it ran here, its own reads could call back
    // again, and so on, ever deeper.
    isInCallback = true
    while let channel = listed.popLast() {
      channel._withUnsafeGuaranteedRef { $0.continueAfterDrain() }
      channel.release()
    }
    isInCallback = false
    if word.load(ordering: .acquiring) == Word.open | Word.submitted { drainLater(drain) }
  }

  /// Makes the submitted drain after the loop has polled its descriptors.
  private func drainLater(_ drain: HostedDrain) {
    if isSelectable { pause(drain) } else { call(drain) }
  }

  /// Runs a callback of a channel on the loop's thread, and then the coroutines that it has woken.
  ///
  /// If the callback is called by a coroutine, or by another callback, what it wakes is run by the drain, or at the end
  /// of the outer callback.
  @inline(__always)
  func inCallback(_ drain: HostedDrain, _ body: () -> Void) {
    if isInCallback || HostedDrain.isInside || state != Word.open { return body() }
    isInCallback = true
    body()
    isInCallback = false
    // In a pause, other channels come first.
    if !isPausing, takeSubmitted() { run(drain) { drain() } }
  }

  /// Wakes the coroutines that wait in `waiters`: at the end of a channel's callback.
  ///
  /// Usually they run within this call. If the loop runs coroutines, another callback, or pauses, they run later, as in
  /// `inCallback`.
  func wake(_ waiters: HostedWaiters, _ drain: HostedDrain) {
    if !isDraining, !isInCallback, !isPausing, state == Word.open {
      isDraining = true
      let hasRun = drain.run(waking: waiters)
      isDraining = false
      if hasRun {
        if !listed.isEmpty { continueListed(drain) }
        return
      }
    }
    inCallback(drain) { waiters.wakeAll() }
  }

  /// Makes `run` call the channel's `continueAfterDrain` after the current drain.
  ///
  /// A coroutine that was started immediately may be outside any drain.
  func continueLater(_ channel: ChannelCore, _ drain: HostedDrain) {
    listed.append(.passRetained(channel))
    if !isDraining { loop.execute { self.run(drain) {} } }
  }

  // MARK: Timers

  // Cancelling a timer of NIO takes linear time. So a timer is never cancelled, and may fire without effect. A new one
  // is scheduled only if none fires early enough.

  func schedule(_ drain: HostedDrain, after delay: Duration) {
    if state == Word.closed { return scheduleAfterShutdown(drain, TimeAmount(delay)) }
    let deadline = loop.now + TimeAmount(delay)
    // The scheduler computes the delay anew each time, so equal deadlines differ by small amounts.
    if let earliest = timers.last, earliest <= deadline + .microseconds(50) { return }
    timers.append(deadline)
    if state == Word.open { loop.scheduleTask(deadline: deadline) { self.timerArrived(deadline, drain) } }
  }

  func unschedule() {}

  private func timerArrived(_ deadline: NIODeadline, _ drain: HostedDrain) {
    removeTimers(until: deadline)
    if state != Word.closed { run(drain) { drain.timerFired() } }
  }

  func removeTimers(until deadline: NIODeadline) {
    while let earliest = timers.last, earliest <= deadline { timers.removeLast() }
  }
}

/// A call that the loop runs, or drops silently.
private final class Call: @unchecked Sendable {
  // Sound because only the loop's thread writes `hasRun`, before it releases the object. The thread of the last release
  // reads it in the deinit.
  private let host: EventLoopHost
  private let drain: HostedDrain
  private var hasRun = false

  init(_ host: EventLoopHost, _ drain: HostedDrain) {
    self.host = host
    self.drain = drain
  }

  func run() {
    hasRun = true
    host.drainIfSubmitted(drain)
  }

  deinit { if !hasRun { host.wasRefused(drain) } }
}
#endif
