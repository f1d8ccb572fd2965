internal import CCoroutine
internal import CLinux
import Dispatch
import Glibc
import Synchronization

// A host that is a thread of the worker pool. The thread runs the drains of one scheduler, and sleeps between them: in
// its poller, if it has one, else on a word. WorkerWord.swift has its states, and why no submission is lost.
//
// `submit` is called by the thread that has moved the inbox out of `idle`, and by the drain when its time slice is used
// up. So at most one submission is pending (Scheduler.swift, 1). Only the thread runs the scheduler's drains. `timer`
// is accessed by them and by the thread, so by one thread.
//
// Descriptors. The sleep in the poller also polls the descriptors: it ends when one is ready, and keeps the events.
// Then the thread moves the inbox out of `idle` itself, and the drain first delivers the events, directly to the ready
// queue. If another thread has moved the inbox before, that thread submits, and the events are delivered here, as
// messages. A busy worker polls without waiting at the beginning of each drain, so once in a time slice (Poller.poll).
//
// Timers. The drain sets the time of the next timer before it goes idle, and the thread sleeps until then at most. If
// another thread starts an earlier timer, it sends a message (Scheduler.add). When the timer is due, the thread moves
// the inbox out of `idle` itself. If another thread has done that before, that thread submits.
//
// Dispatch is not involved, with a queue, a timer source or its manager thread. So one system call wakes an idle
// worker.

final class WorkerHost: Host, @unchecked Sendable {
  // Sound because the state is atomic, and the invariants name the guard of everything else.

  private let word = WorkerWord()
  /// The time of the next timer; `max` means none.
  @exclusivity(unchecked) private var timer = UInt64.max
  /// The thread; 0 while there is none.
  private let thread = Atomic<UInt>(0)
  /// The kernel's number of the thread, for the watchdog; 0 while there is none.
  let threadID = Atomic<Int32>(0)
  private let index: Int
  /// How long the thread sleeps without work before it ends, in ns; 0 means for ever.
  private let rest: UInt64

  private init(_ label: String, _ index: Int, rest: UInt64) {
    self.index = index
    self.rest = rest
    super.init(label: label, hasOwnThread: true)
  }

  /// Creates the scheduler of a worker, which is never released.
  ///
  /// Its thread starts with its first drain. The scheduler's queue runs no block: it identifies the scheduler in
  /// interfaces that need a queue.
  static func makeScheduler(_ label: String, _ pool: WorkerPool, _ index: Int, rest: UInt64 = 0) -> Scheduler {
    let queue = DispatchQueue(label: label)
    let made = Scheduler(host: WorkerHost(label, index, rest: rest), anchor: queue, pool: pool, index: index)
    QueueHost.store(made, in: queue)
    return made
  }

  /// Whether the thread runs.
  var hasThread: Bool { thread.load(ordering: .relaxed) != 0 }

  // MARK: Host

  override func submit(_ scheduler: Scheduler, _ anchor: Anchor?) -> Bool {
    switch word.submit() {
    case .nothing: break
    case .start: Self.startThread({ WorkerHost.main($0) }, Unmanaged.passUnretained(scheduler).toOpaque())
    case .wake: word.wake()
    case .signal: scheduler.ownPoller?._withUnsafeGuaranteedRef { $0.wakeUp() }
    }
    return true
  }

  override func isCurrent(_ scheduler: Scheduler) -> Bool {
    thread.load(ordering: .relaxed) == UInt(pthread_self())
  }

  override func wake(at time: UInt64?, _ anchor: Anchor?) { timer = time ?? .max }

  // MARK: The thread

  /// Starts a thread of the pool, detached.
  static func startThread(
    _ body: @convention(c) (UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer?,
    _ argument: UnsafeMutableRawPointer
  ) {
    var thread = pthread_t()
    let code = SignalMask.whileBlocked { pthread_create(&thread, nil, body, argument) }
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
    clinux_let_in_questions()
    clinux_name_thread("co-worker-\(host.index)")
    host.thread.store(UInt(pthread_self()), ordering: .relaxed)
    host.threadID.store(clinux_thread_id(), ordering: .relaxed)
    cco_call_to_its_end({ WorkerHost.serve($0) }, argument)
    return nil
  }

  private static func serve(_ argument: UnsafeMutableRawPointer?) {
    guard let argument else { return }
    let scheduler = Unmanaged<Scheduler>.fromOpaque(argument).takeUnretainedValue()
    (scheduler.host as? WorkerHost)?.serve(scheduler)
  }

  /// Runs the scheduler's drains until the thread may end.
  private func serve(_ scheduler: Scheduler) {
    while true {
      if word.begin() {
        scheduler.drain()
      } else if let poller = scheduler.ownPoller, poller._withUnsafeGuaranteedRef({ $0.taken > 0 }) {
        // If that fails, another thread has just woken the inbox, and submits.
        if scheduler.inbox.wakeUp() { scheduler.drain() } else { poller._withUnsafeGuaranteedRef { $0.deliver() } }
      } else if timer <= scheduler.clock {
        timer = .max
        if scheduler.inbox.wakeUp() { scheduler.drain() }
      } else if !sleep(scheduler) {
        return
      }
    }
  }

  /// The duration of the sleep in the poller before a timer that is due in `time`, in ns.
  ///
  /// The kernel may end a wait for descriptors late, by up to 0.5 % of it. So a long sleep is shortened by more than
  /// that, and another sleep follows.
  static func cutShort(_ time: UInt64) -> Int64 {
    Int64(clamping: time > 10_000_000 ? time - time / 128 : time)
  }

  /// Sleeps until the next submission, timer or event; returns false if the thread may end.
  ///
  /// May return early; the caller checks all of them again.
  private func sleep(_ scheduler: Scheduler) -> Bool {
    let now = scheduler.clock
    let time: UInt64? = timer == .max ? nil : timer > now ? timer - now : 1
    let poller = scheduler.ownPoller
    guard word.mayRest(inPoller: poller != nil) else { return true }
    if let poller {
      poller._withUnsafeGuaranteedRef { $0.take(waiting: time.map(Self.cutShort) ?? -1) }
    } else if let time {
      word.sleep(atMost: time)
    } else if !word.sleep(atMost: rest) {
      return !mayEnd(scheduler)
    }
    return true
  }

  /// Whether the thread ends; another thread may serve the scheduler by then.
  private func mayEnd(_ scheduler: Scheduler) -> Bool {
    if scheduler.keepers > 0 { return false }
    // Before the word changes: the number may soon be that of another thread.
    thread.store(0, ordering: .relaxed)
    threadID.store(0, ordering: .relaxed)
    if word.mayEnd() { return true }
    thread.store(UInt(pthread_self()), ordering: .relaxed)
    threadID.store(clinux_thread_id(), ordering: .relaxed)
    return false
  }
}
