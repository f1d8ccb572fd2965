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
//   FRESH     nobody yet: a drain waits for the loop to take its first call
//   OPEN      the loop: by `execute`, at the end of a channel's callback, or by a timer
//   CLOSING   the loop's thread, in the last function that the loop calls (pump)
//   CLOSED    the successor, a Dispatch queue. No coroutine is live, and none can start (Scheduler+End.swift): what is
//             left are the ends of refused jobs, handlers, and timers that outlived the loop
//
// Invariants
//  1. The scheduler submits a drain only if none is submitted or running (Inbox.swift). `submitted`, a bit of `word`,
//     is set by submit, and cleared by the code that makes the drain, immediately before it.
//  2. The state and that bit are one atomic word. So a submit either sees the new state, or its bit is seen by the
//     thread that has changed the state: no drain is lost and none is made twice.
//  3. After each submit at least one attempt to make the drain follows, on a thread that may: a call of the loop, the
//     end of the current callback, the pump or the successor. An attempt that finds the bit clear does nothing.
//  4. The loop may drop a call without a word, if it was shut down. Then the call's object is released unused, and
//     reports that (Call). In the state OPEN that needs no more than an early cancellation, because the sentinel ends
//     on the loop's thread after every call that the loop refuses.
//
// Why the same tick. A coroutine that is woken on the loop's thread, outside a drain, is made ready by `execute`, which
// NIO runs before it waits for events again, or at the end of the channel callback that has woken it: then its read
// request is there before NIO gives up its interest in the descriptor, which saves two system calls a request.
//
// Why a drain that has used up its time slice continues by a timer: NIO runs what is executed from within its calls,
// and timers that are due by then, before it looks at its descriptors, for as long as there is more. A coroutine that
// always is ready would keep the loop from all its channels. So the timer must not be due when NIO looks at its timers
// next, after this call has returned: `pause` is many times that long, and costs a loop that is never idle a tenth of
// its time.

final class EventLoopHost: CoroutineHost, @unchecked Sendable {
  // Sound because `word` is atomic, the constants are Sendable, and everything under "The loop's" is accessed on the
  // loop's thread only, which runs one call at a time.

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
  let word = Atomic<UInt8>(Word.fresh)
  /// Makes the drains after the loop's end.
  let successor = DispatchQueue(label: "coroutine.nio.after-shutdown")
  /// Signalled by each submit while the pump waits.
  let pumpWakeUp = DispatchSemaphore(value: 0)

  // MARK: The loop's

  /// Whether a callback of a channel is under way, at whose end a submitted drain is made.
  @exclusivity(unchecked) private var isInCallback = false
  @exclusivity(unchecked) private var isDraining = false
  /// Whether a timer will continue a drain that has used up its time slice.
  @exclusivity(unchecked) private var isPausing = false
  /// The deadlines of the timers that the loop has, the earliest last.
  @exclusivity(unchecked) var timers: [NIODeadline] = []
  /// The channels with unflushed writes.
  @exclusivity(unchecked) private var unflushed: [ChannelCore] = []
  /// What the pump has done; see EventLoopHost+Shutdown.swift.
  @exclusivity(unchecked) var pumping = Pumping()

  init(_ loop: any EventLoop) {
    self.loop = loop
    let address = UInt(bitPattern: Unmanaged.passUnretained(loop as AnyObject).toOpaque())
    coroutineLabel = "\(type(of: loop)) 0x" + String(address, radix: 16)
  }

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
      if isDraining, isSelectable {
        pause(drain)
      } else {
        call(drain)
      }
    default: call(drain)
    }
  }

  /// Continues after a pause, in which the loop looks at its descriptors.
  ///
  /// One timer at a time: a second one would be due when the drain ends that the first one has made.
  private func pause(_ drain: HostedDrain) {
    if isPausing { return }
    isPausing = true
    loop.scheduleTask(in: Self.pause) {
      self.isPausing = false
      self.arrive(drain)
    }
  }

  private func call(_ drain: HostedDrain) {
    let call = Call(self, drain)
    loop.execute { call.arrive() }
  }

  /// Whether the loop has events besides its calls, on its own thread.
  var isSelectable: Bool { MultiThreadedEventLoopGroup.currentEventLoop === loop }

  /// Makes the submitted drain, if it has not been made.
  ///
  /// Called by the loop.
  func arrive(_ drain: HostedDrain) {
    if state == Word.fresh { open(drain) }
    if state != Word.closed, takeSubmitted() {
      run { drain() }
      pumping.hasRun = true
    }
  }

  /// Whether a drain was submitted and not made; the caller makes it.
  func takeSubmitted() -> Bool {
    word.bitwiseAnd(~Word.submitted, ordering: .acquiringAndReleasing).oldValue & Word.submitted != 0
  }

  /// Runs coroutines on the loop's thread, and then flushes what they have written.
  func run(_ drain: () -> Void) {
    isDraining = true
    drain()
    isDraining = false
    while let channel = unflushed.popLast() { channel.flushAfterDrain() }
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
    if !isPausing, takeSubmitted() { run { drain() } }
  }

  /// Flushes a channel after the current drain.
  func flushLater(_ channel: ChannelCore) { unflushed.append(channel) }

  // MARK: Timers

  // NIO searches all its timers to cancel one. So a timer is never cancelled: it comes in vain. A new one is needed
  // only if none comes early enough.

  func schedule(_ drain: HostedDrain, after delay: Duration) {
    if state == Word.closed { return scheduleAfterShutdown(drain, TimeAmount(delay)) }
    let deadline = loop.now + TimeAmount(delay)
    // The scheduler computes the delay again each time, so the same deadline comes with small differences.
    if let earliest = timers.last, earliest <= deadline + .microseconds(50) { return }
    timers.append(deadline)
    if state == Word.open { loop.scheduleTask(deadline: deadline) { self.timerArrived(deadline, drain) } }
  }

  func unschedule() {}

  private func timerArrived(_ deadline: NIODeadline, _ drain: HostedDrain) {
    removeTimers(until: deadline)
    if state != Word.closed { run { drain.timerFired() } }
  }

  func removeTimers(until deadline: NIODeadline) {
    while let earliest = timers.last, earliest <= deadline { timers.removeLast() }
  }
}

/// A call that the loop has accepted, or silently dropped.
private final class Call: @unchecked Sendable {
  // Sound because the loop's thread alone writes `hasArrived`, before it releases the object; after the last release
  // one thread has the object.
  private let host: EventLoopHost
  private let drain: HostedDrain
  private var hasArrived = false

  init(_ host: EventLoopHost, _ drain: HostedDrain) {
    self.host = host
    self.drain = drain
  }

  func arrive() {
    hasArrived = true
    host.arrive(drain)
  }

  deinit { if !hasArrived { host.wasRefused(drain) } }
}
#endif
