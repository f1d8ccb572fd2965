import Synchronization

// A scheduler on a loop of another library: an event loop, the main loop of a user interface, an executor with its own
// thread. The scheduler submits drains to the loop, and the loop calls them.
//
// Lifetime. HostedScheduler holds the scheduler, the scheduler its Host, the Host the loop. The record of each job
// holds the scheduler. So do the handlers that wait for it (Scheduler.pin), and each drain until it has run. So the
// loop object lives while one of its coroutines or handlers lives. There is no anchor, because nothing has to be
// released when the last job ends.
//
// At most one drain. As for a queue, only the inbox's transition out of `idle` submits a drain (Inbox.swift). A loop
// whose timer fires sends a message, which starts a drain by the same transition; on the loop's thread that drain runs
// at once.

/// A loop of another library that runs coroutines, for example an event loop.
///
/// ```swift
/// extension MyLoop: CoroutineHost {
///   var coroutineLabel: String { name }
///   var isCurrentForCoroutines: Bool { isInLoop }
///   func submit(_ drain: HostedDrain) { execute { drain() } }
///   func schedule(_ drain: HostedDrain, after delay: Duration) { timer.set(after: delay) { drain.timerFired() } }
///   func unschedule() { timer.cancel() }
/// }
/// ```
///
/// A host runs the drains of its scheduler one after another, on one thread at a time. While its coroutines live, it
/// runs every drain that is submitted. So the loop must not end before its coroutines.
public protocol CoroutineHost: AnyObject, Sendable {
  /// A name for dumps.
  var coroutineLabel: String { get }

  /// Whether the calling thread is the host's, so that blocking it would block the host's coroutines.
  ///
  /// Called on any thread; does not wait.
  var isCurrentForCoroutines: Bool { get }

  /// Makes the host call `drain` once, after what was submitted before, and not within this call.
  ///
  /// Called on any thread, once for each time that the scheduler gets work while it is idle; does not wait.
  func submit(_ drain: HostedDrain)

  /// Makes the host call `drain.timerFired()` once, when `delay` has passed; replaces an earlier request.
  ///
  /// Called on the host's thread.
  func schedule(_ drain: HostedDrain, after delay: Duration)

  /// Cancels the request of `schedule`, if there is one; a call that comes nevertheless has no effect.
  ///
  /// Called on the host's thread.
  func unschedule()

  /// The host's own time, in nanoseconds that never decrease; nil, the default, if it is the system's monotonic clock.
  ///
  /// A loop for tests that is told how late it is has a time of its own: its coroutines' delays, timeouts and select
  /// cases then follow it. Time slices do as well: where it stands still, a drain ends after a number of resumes.
  ///
  /// Called on any thread; does not wait. Always nil, or never.
  var coroutineTime: UInt64? { get }
}

extension CoroutineHost {
  /// Nil: the system's monotonic clock.
  public var coroutineTime: UInt64? { nil }
}

/// A call that a ``CoroutineHost`` makes on its thread: runs coroutines for at most about 250 µs.
///
/// It holds the scheduler until the call has been made.
public struct HostedDrain: Sendable {
  let scheduler: Scheduler

  /// Runs the ready coroutines and handlers, and submits another drain if that takes longer than a time slice.
  ///
  /// Called on the host's thread, once for each ``CoroutineHost/submit(_:)``.
  public func callAsFunction() { scheduler.drain() }

  /// Fires the due timers.
  ///
  /// Called on the host's thread, for ``CoroutineHost/schedule(_:after:)``. The call may be late, early or unnecessary.
  public func timerFired() { scheduler.hostTimerFired() }
}

/// The coroutines of a ``CoroutineHost``.
///
/// A host has one scheduler, created once. The coroutines run on the host's thread, one at a time, between the other
/// calls of the host.
public final class HostedScheduler: Sendable {
  let scheduler: Scheduler

  /// Creates the scheduler of `host`, and retains the host.
  public init(_ host: some CoroutineHost) {
    ForkedChild.noteUse()
    let driver = LoopHost(host)
    scheduler = Scheduler(host: driver, anchor: nil, pool: nil)
    driver.scheduler = scheduler
  }
}

extension CoroutineExecutor {
  /// Creates an executor of a host's coroutines: Swift's jobs run on the host's thread, between its coroutines.
  ///
  /// The executor retains the host. Never suspends; any thread.
  public convenience init(_ host: HostedScheduler) { self.init(host.scheduler, nil) }
}

/// Drives a scheduler by a loop of another library.
private final class LoopHost: Host, @unchecked Sendable {
  // Sound because the loop is a constant and Sendable, `scheduler` is set before another thread has the host, and only
  // the scheduler's drain accesses `armedFor`.
  private let loop: any CoroutineHost
  private let hasOwnTime: Bool
  /// The time for which the loop has a request; `max` if it has none.
  @exclusivity(unchecked) private var armedFor = UInt64.max
  // Sound because the scheduler owns this host and calls it.
  @exclusivity(unchecked) unowned(unsafe) var scheduler: Scheduler?

  init(_ loop: any CoroutineHost) {
    self.loop = loop
    hasOwnTime = loop.coroutineTime != nil
    super.init(label: loop.coroutineLabel, mayPoll: false, hasOwnThread: true)
  }

  override var now: UInt64 {
    guard hasOwnTime, let time = loop.coroutineTime else { return Clock.now }
    return time
  }

  override func submit(_ scheduler: Scheduler, _ anchor: Anchor?) -> Bool {
    loop.submit(HostedDrain(scheduler: scheduler))
    return true
  }

  override func isCurrent(_ scheduler: Scheduler) -> Bool { loop.isCurrentForCoroutines }

  override func wake(at time: UInt64?, _ anchor: Anchor?) {
    guard let time else { return anchorReleased() }
    guard time != armedFor, let scheduler else { return }
    armedFor = time
    let now = now
    // At most 73 years, so that the loop can add the delay to its own time. A call that is early is repeated.
    let delay = min(time > now ? time - now : 0, UInt64(Int64.max / 4))
    loop.schedule(HostedDrain(scheduler: scheduler), after: .nanoseconds(Int64(delay)))
  }

  /// No timer is set.
  override func anchorReleased() {
    guard armedFor != .max else { return }
    armedFor = .max
    loop.unschedule()
  }

  override func hasWoken() { armedFor = .max }
}

// MARK: - The host of a loop

// What a loop needs in addition that can be shut down, and whose own calls run coroutines. It is `@_spi(Hosting)`: a
// host of coroutines is written without it, as the example of CoroutineHost is.

@_spi(Hosting)
extension HostedScheduler {
  /// The drain of the scheduler.
  ///
  /// It may be called only if the scheduler has submitted one, once for each submit, on the host's thread.
  public var drain: HostedDrain { HostedDrain(scheduler: scheduler) }

  /// Begins an operation that may wait, as ``HostedWaiters/begin()``, of a coroutine of this scheduler; returns false,
  /// and has done nothing, in a coroutine of another one.
  ///
  /// May suspend, if the drain has run for long. Throws the cancellation error, and
  /// ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "call it in a coroutine of the host")
  public func begin() throws -> Bool {
    let (carrier, job) = try Carrier.requireJob()
    if !owns(job) { return false }
    _ = Carrier.countWait(carrier, job)
    try job.checkCancelled()
    return true
  }

  /// Whether the calling code is a coroutine of this scheduler.
  ///
  /// Any thread; does not suspend.
  public var runsCaller: Bool { Carrier.current?.pointee.job.map(owns) ?? false }

  private func owns(_ job: JobRef) -> Bool {
    job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == Unmanaged.passUnretained(scheduler).toOpaque()
  }
}

@_spi(Hosting)
extension HostedDrain {
  /// Whether the calling thread runs coroutines of any scheduler, so that no drain may begin.
  ///
  /// Any thread; does not wait.
  public static var isInside: Bool { Carrier.current != nil }

  /// Wakes all coroutines that wait in `waiters`, and runs them within this call.
  ///
  /// Called on the host's thread. Returns false, and has done nothing, if that thread runs coroutines already, or if a
  /// drain is submitted. Otherwise the call is a drain: it runs what is ready, and submits another one if that takes
  /// longer than a time slice. It is cheaper than ``HostedWaiters/wakeAll()`` and a submitted drain, because what it
  /// wakes need not pass the scheduler's inbox.
  public func run(waking waiters: HostedWaiters) -> Bool {
    if HostedDrain.isInside || !scheduler.inbox.wakeUp() { return false }
    scheduler.drain { waiters.wakeAll() }
    return true
  }

  /// Cancels all live coroutines, and fails all coroutines that are launched later, with `error`.
  ///
  /// Any thread; does not wait. The first call determines the error. The host goes on making drains until
  /// ``hasLiveJobs`` is false, and also after that, for handlers and for jobs that are launched too late.
  public func end(_ error: any Error) { scheduler.end(error) }

  /// Whether a coroutine that was launched on the host has not ended.
  ///
  /// Any thread; does not wait.
  public var hasLiveJobs: Bool { scheduler.hasLiveJobs }
}

// MARK: - Threads that wait

/// A condition variable for the coroutines of one host.
///
/// It has no lock, because one thread, the host's, tests the condition, waits, and wakes. Only that thread may use an
/// object of this type, in its coroutines or outside of them.
///
/// ```swift
/// try HostedWaiters.begin()
/// while queue.isEmpty { try waiters.wait() }
/// ```
///
/// Between `begin` and `wait` no other code runs on the thread, unless the caller itself calls foreign code. So a
/// caller tests its condition after `begin`, and again after foreign code, and then waits: no wake-up is lost. A
/// wake-up does not mean that the condition holds, so a coroutine that returns from `wait` tests it again.
@_spi(Hosting)
public final class HostedWaiters: @unchecked Sendable {
  // Sound because of invariant 1.
  //
  // Invariants
  //  1. Only the host's thread, in its coroutines or outside of them, accesses an object of this type.
  //  2. A waiter is linked from the moment that its coroutine leaves its stack until its wait is claimed. The claim and
  //     the unlinking happen on the host's thread: a wake-up there, or a cancellation, which the host's drain handles.

  @exclusivity(unchecked) private var waiters = WaitQueue()

  /// Creates a list on which no coroutine waits.
  public init() {}

  /// Whether no coroutine waits.
  public var isEmpty: Bool { waiters.first == nil }

  /// Begins an operation that may wait.
  ///
  /// May suspend, if the drain has run for long. Throws the cancellation error, and
  /// ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "call it in a coroutine of the host")
  public static func begin() throws { _ = try Carrier.beginWaiting() }

  /// Suspends the running coroutine until ``wakeAll()`` on the host's thread.
  ///
  /// Throws the cancellation error, also if foreign code has cancelled the coroutine since `begin`.
  @available(*, noasync, message: "call it in a coroutine of the host")
  public func wait() throws {
    let (carrier, job) = try Carrier.requireJob()
    try job.checkCancelled()
    var waiter = Waiter(job: job)
    try withUnsafeMutablePointer(to: &waiter) { waiter in
      _ = try WaitQueue.park(carrier, job, .callback) { epoch in
        waiters.append(waiter, epoch)
      } withdraw: {
        waiters.remove(waiter)
      }
    }
  }

  /// Wakes all coroutines that wait, in the order of waiting.
  ///
  /// They are enqueued, and run after this call. The time is linear in their number; nothing is allocated.
  public func wakeAll() {
    while let waiter = waiters.claimFirst() { waiter.wake() }
  }
}
