internal import CLinux
import Dispatch
import Glibc
import Synchronization

// A host that is a thread of the worker pool. The thread runs the drains of one scheduler, and sleeps between them.
//
//               submit                       the thread                   nothing to do
//   UNSTARTED ----------> SUBMITTED <===> RUNNING ----------> SLEEPING ---------------> RUNNING
//                             ^      submit  |                   |    the timer is due
//                             |              |                   | submit, and a wake-up
//                             +--------------+-------------------+
//
// `submit` is called by the thread that has moved the inbox out of `idle`, and by the drain when its time slice is used
// up. So at most one submission is pending (Scheduler.swift, 1).
//
// Invariants
//  1. Every submission is followed by a drain. `submit` exchanges SUBMITTED for the old state; the thread exchanges
//     RUNNING for it, and drains if it finds SUBMITTED. Both are read-modify-writes of one word, so no SUBMITTED is
//     overwritten unseen.
//  2. The thread sleeps only in SLEEPING, which it reaches from RUNNING by compare-and-swap: a submission before that
//     makes it fail. A submission after it finds SLEEPING, and wakes the thread. The kernel compares the word when the
//     thread goes to sleep, so a wake-up between the two is not lost.
//  3. Only the thread runs the scheduler's drains. `timer` is accessed by them and by the thread, so by one thread.
//
// Timers. The drain sets the time of the next timer before it goes idle, and the thread sleeps until then at most. If
// another thread starts an earlier timer, it sends a message (Scheduler.add). When the timer is due, the thread moves
// the inbox out of `idle` itself. If another thread has done that before, that thread submits.
//
// No queue, timer source or manager thread of Dispatch is involved, so one system call wakes an idle worker.

final class WorkerHost: Host, @unchecked Sendable {
  // Sound because the state is atomic, and the invariants name the guard of everything else.

  private let state = Atomic<UInt32>(WorkerHost.unstarted)
  /// The time of the next timer; `max` means none.
  @exclusivity(unchecked) private var timer = UInt64.max
  /// The thread, once it runs; 0 before.
  private let thread = Atomic<UInt>(0)
  private let index: Int

  private static var unstarted: UInt32 { 0 }
  private static var submitted: UInt32 { 1 }
  private static var running: UInt32 { 2 }
  private static var sleeping: UInt32 { 3 }

  private init(_ label: String, _ index: Int) {
    self.index = index
    super.init(label: label)
  }

  /// Creates the scheduler of a worker, which is never released.
  ///
  /// Its thread starts with its first drain. The scheduler's queue runs no block: it identifies the scheduler in
  /// interfaces that need a queue.
  static func makeScheduler(_ label: String, _ pool: WorkerPool, _ index: Int) -> Scheduler {
    let queue = DispatchQueue(label: label)
    let made = Scheduler(host: WorkerHost(label, index), anchor: queue, pool: pool, index: index)
    QueueHost.store(made, in: queue)
    return made
  }

  /// Whether the thread runs.
  var hasThread: Bool { thread.load(ordering: .relaxed) != 0 }

  // MARK: Host

  override func submit(_ scheduler: Scheduler, _ anchor: Anchor?) -> Bool {
    let old = state.exchange(Self.submitted, ordering: .acquiringAndReleasing)
    if old == Self.sleeping {
      withWord { clinux_futex_wake($0) }
    } else if old == Self.unstarted {
      start(scheduler)
    }
    return true
  }

  override func isCurrent(_ scheduler: Scheduler) -> Bool {
    thread.load(ordering: .relaxed) == UInt(pthread_self())
  }

  override func wake(at time: UInt64?, _ anchor: Anchor?) { timer = time ?? .max }

  // MARK: The thread

  private func start(_ scheduler: Scheduler) {
    let argument = Unmanaged.passUnretained(scheduler).toOpaque()
    var thread = pthread_t()
    let code = SignalMask.whileBlocked { pthread_create(&thread, nil, { WorkerHost.main($0) }, argument) }
    precondition(
      code == 0,
      """
      the worker pool could not start a thread (error \(code)): the process has met a limit on threads or memory; raise \
      pids.max of its cgroup, RLIMIT_NPROC (ulimit -u), kernel.threads-max or memory.max
      """
    )
    pthread_detach(thread)
  }

  private static func main(_ argument: UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer? {
    guard let argument else { return nil }
    let scheduler = Unmanaged<Scheduler>.fromOpaque(argument).takeUnretainedValue()
    guard let host = scheduler.host as? WorkerHost else { return nil }
    // A cancelled thread would drop the frames of the coroutine that it runs.
    pthread_setcancelstate(Int32(PTHREAD_CANCEL_DISABLE), nil)
    clinux_name_thread("co-worker-\(host.index)")
    host.thread.store(UInt(pthread_self()), ordering: .relaxed)
    host.serve(scheduler)
  }

  private func serve(_ scheduler: Scheduler) -> Never {
    while true {
      if state.exchange(Self.running, ordering: .acquiringAndReleasing) == Self.submitted {
        scheduler.drain()
      } else if timer <= scheduler.clock {
        timer = .max
        // If that fails, another thread has just woken the inbox, and submits.
        if scheduler.inbox.wakeUp() { scheduler.drain() }
      } else {
        sleep(scheduler)
      }
    }
  }

  /// Sleeps until the next submission or timer.
  ///
  /// May return early; the caller checks the state and the timer again.
  private func sleep(_ scheduler: Scheduler) {
    let now = scheduler.clock
    let time: UInt64 = timer == .max ? 0 : timer > now ? timer - now : 1
    let (isSleeping, _) = state.compareExchange(
      expected: Self.running,
      desired: Self.sleeping,
      ordering: .acquiringAndReleasing
    )
    if isSleeping { withWord { _ = clinux_futex_wait($0, Self.sleeping, time) } }
  }

  /// Passes the address of the state, which does not move.
  private func withWord(_ body: (UnsafePointer<UInt32>) -> Void) {
    withUnsafePointer(to: state) { body(UnsafeRawPointer($0).assumingMemoryBound(to: UInt32.self)) }
  }
}
