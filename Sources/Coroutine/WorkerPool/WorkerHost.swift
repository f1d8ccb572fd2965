internal import CCoroutine
internal import CLinux
import Dispatch
import Glibc
import Synchronization

// A host that is a thread of the worker pool. The thread runs the drains of one scheduler, and sleeps between them: in
// its poller, if it has one, else on a word. ThreadWords.swift has its states, and why no submission is lost.
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

  fileprivate let word = WorkerWord()
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
    case .start:
      let code = Self.startThread({ WorkerHost.main($0) }, Unmanaged.passUnretained(scheduler).toOpaque())
      if code != 0 {
        word.withdraw()
        scheduler.goWithoutThread(code)
      } else {
        scheduler.hasThreadAgain()
      }
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

  /// Starts a thread of the pool, detached, and returns 0 or an error number.
  static func startThread(
    _ body: @convention(c) (UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer?,
    _ argument: UnsafeMutableRawPointer
  ) -> Int32 {
    if let refusal = refuseThreads.map({ $0() }), refusal != 0 { return refusal }
    return SignalMask.whileBlocked { clinux_start_thread(stackBytes, body, argument) }
  }

  /// What a thread of a program has: Tasks and handlers run on it.
  ///
  /// Without a size the C library takes that of `ulimit -s`, with which it may start no thread, or one with too little.
  /// Only touched pages cost memory.
  private static var stackBytes: Int { 8 << 20 }

  /// The error number with which a thread is refused, or 0; for tests.
  // Sound because a test sets it before the process uses the runtime.
  nonisolated(unsafe) static var refuseThreads: (@Sendable () -> Int32)?

  private static func main(_ argument: UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer? {
    guard let argument else { return nil }
    let scheduler = Unmanaged<Scheduler>.fromOpaque(argument).takeUnretainedValue()
    guard let host = scheduler.host as? WorkerHost else { return nil }
    // A cancelled thread would drop the frames of the coroutine that it runs.
    pthread_setcancelstate(Int32(PTHREAD_CANCEL_DISABLE), nil)
    clinux_let_in_questions()
    // Inherited from the thread that has started this one, which may compute with another rounding.
    cco_reset_floating_point()
    // Not by an implicit conversion, which allocates: the thread may begin where there is no memory.
    "co-worker-\(host.index)".withCString { clinux_name_thread($0) }
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

// MARK: - Workers without a thread

// A worker whose thread cannot be started: the process has met a limit (pids.max of its cgroup, RLIMIT_NPROC, memory).
// The process goes on with the threads that it has, and tries again.
//
// The thread that submitted the drain finds it out. It owns the drain, because it has moved the inbox out of `idle` and
// no thread drains. So it empties the inbox itself, and makes it idle again: the next submission starts the thread
// anew.
//
//   message                                 with another worker that has a thread     without any
//   a job that may move                     goes there                                fails with outOfStacks, unless it
//                                                                                     has begun elsewhere
//   an interrupt, a timer, a Swift job      stays; that worker is asked to take over  stays
//
// What stays keeps the inbox from being idle, so no submission comes. The watchdog submits in place of it, at each
// inspection, and so does what chooses the worker from outside, or sends to it: a launch, a job of a Task, a timer.
//
// The bit in `withoutThread` counts as having no drain, so that the watchdog may rest; and no thread offers work to the
// worker, because its idle bit is clear. The watchdog gives the idle bit back once a second, for one more offer.

extension Scheduler {
  fileprivate func goWithoutThread(_ code: Int32) {
    guard let pool = readyQueue.pointee.workerPool?.takeUnretainedValue() else { return }
    let other = pool.workerWithThread
    noteThread(false, pool)
    repeat {
      var taken = asWorker {
        inbox.takeOut(from: $0) { message in
          guard case .job(let job) = message else { return false }
          return job.hold.mayMove && (other != nil || job.pointee.context == nil)
        }
      }.messages
      while case .job(let job)? = taken.popFirst() {
        if let other {
          job.pointee.scheduler.store(.passUnretained(other), ordering: .releasing)
          other.push(.job(job))
        } else {
          AnyJob.fail(job, CoroutineError.outOfStacks(WorkerPool.refusal(code)))
        }
      }
      if inbox.hasMessages || hasSwiftJobs {
        // Before the request, whose worker may be done with it soon.
        asWorker { $0.isLeft.store(true, ordering: .releasing) }
        // Again, because the watchdog may have given the idle bit back meanwhile; it looks at `isLeft` after that.
        noteNoThread(pool)
        // It may get a thread where this worker has got none, or later.
        pool.startWatching()
        // One request at a time (TakeOver.swift).
        if !asWorker({ $0.isRescued.load(ordering: .relaxed) }) { other?.askToTakeOver(from: self) }
        return
      }
      // As at the end of a drain: a thread that has added a Swift job meanwhile leaves it to this one.
    } while !inbox.goIdle() || asWorker({ $0.swiftJobs.isWaitingAtLast }) && inbox.wakeUp()
  }

  fileprivate func hasThreadAgain() {
    guard let pool = readyQueue.pointee.workerPool?.takeUnretainedValue() else { return }
    noteThread(true, pool)
  }

  private func noteThread(_ isThere: Bool, _ pool: WorkerPool) {
    let index = workerIndex
    guard index < pool.workers.count else { return }
    let bit: UInt64 = 1 << UInt64(index)
    if isThere {
      guard pool.withoutThread.load(ordering: .relaxed) & bit != 0 else { return }
      _ = pool.withoutThread.bitwiseAnd(~bit, ordering: .sequentiallyConsistent)
    } else {
      _ = pool.withoutThread.bitwiseOr(bit, ordering: .sequentiallyConsistent)
      _ = pool.idle.bitwiseAnd(~bit, ordering: .sequentiallyConsistent)
    }
  }

  /// Notes that the worker has no thread, unless it has one by now: another thread may have tried again, with success.
  private func noteNoThread(_ pool: WorkerPool) {
    noteThread(false, pool)
    if hasThreadOrStarts { noteThread(true, pool) }
  }

  /// Whether a thread of this worker's runs, or is being started.
  var hasThreadOrStarts: Bool { (host as? WorkerHost)?.word.hasThread ?? false }

  /// Takes the idle bit back from a worker that has something, with a thread or without.
  ///
  /// Called by the watchdog, which has set the bit.
  fileprivate func takeIdleBitBack(_ pool: WorkerPool) {
    noteNoThread(pool)
    // As after an offer: it may have gone idle since, and counts on its bit.
    if inbox.wakeUp() { submit() }
  }

  /// Whether no thread of this worker's runs; wrong for a moment while one begins, or ends without work.
  var lacksThread: Bool { (host as? WorkerHost)?.hasThread == false }

  /// Submits the drain of a worker that has something left in its inbox, and no thread.
  func submitWhatIsLeft() {
    if asWorker({ $0.isLeft.exchange(false, ordering: .acquiringAndReleasing) }) { submit() }
  }

  /// Whether a message to this worker may find an inbox that is not idle, and no thread: then who sends it submits.
  var mayBeLeft: Bool {
    readyQueue.pointee.workerPool?._withUnsafeGuaranteedRef { $0.withoutThread.load(ordering: .relaxed) != 0 } ?? false
  }
}

extension WorkerPool {
  /// A worker with a thread, which may not have begun to run; nil if none has one.
  fileprivate var workerWithThread: Scheduler? {
    workers.first(where: \.hasThreadOrStarts)
  }

  /// Tries again where threads are missing; once a second with an offer.
  ///
  /// Called by the watchdog.
  func retryThreads(_ now: UInt64) {
    for worker in workers { worker.submitWhatIsLeft() }
    for spare in spares { spare.submitWhatIsLeft() }
    let missing = withoutThread.load(ordering: .relaxed)
    guard missing != 0, now >= nextRetry else { return }
    nextRetry = now + 1_000_000_000
    _ = withoutThread.bitwiseAnd(~missing, ordering: .sequentiallyConsistent)
    _ = idle.bitwiseOr(missing, ordering: .sequentiallyConsistent)
    // Not of those that have something: it was tried in vain, above, or another thread is about to try, or to run it.
    // After these stores, because a worker may get something at any time, and its thread with it.
    for (index, worker) in workers.enumerated() where missing & (1 << UInt64(index)) != 0 && !worker.inbox.isIdle {
      worker.takeIdleBitBack(self)
    }
    for worker in workers { worker.submitWhatIsLeft() }
  }

  static func refusal(_ code: Int32) -> String {
    """
    the worker pool could not start a thread, and has none (error \(code)): the process has met a limit on threads or \
    memory; raise pids.max of its cgroup, RLIMIT_NPROC (ulimit -u), kernel.threads-max or memory.max
    """
  }
}

// MARK: - Descriptors

// The pollers of the workers. All are made when a coroutine on a worker first waits for a descriptor. So a program that
// waits for no descriptor has no poller, and another one has a constant number from then on. If a poller cannot be
// made, because no descriptor is free, the next first wait for a descriptor tries again. Until then, the poller with a
// thread watches the descriptors of that worker's coroutines, or the wait throws the error.
//
// Spare workers have no pollers, because a connection would stay with a worker that only finishes other workers' jobs.
// The descriptors of their coroutines are added to another worker's poller.
//
// A worker that sleeps on its word while its poller is made takes no events. So a coroutine adds descriptors to the
// poller of the worker that runs it: that worker is awake, and sleeps in its poller afterwards (WorkerHost.sleep). A
// coroutine of a spare worker first wakes the other worker. Either the wake-up moves the inbox out of `idle`, or that
// worker has not gone idle yet, and finds its poller after it has.

extension WorkerPool {
  private static let pollerLock = ThreadLock()

  /// Makes the pollers that are missing, that of `first` before the others; stops at the first that cannot be made.
  fileprivate func makePollers(first: Scheduler) {
    Self.pollerLock.withLock {
      for worker in [first] + workers where !worker.hasPoller {
        guard let made = try? Poller() else { return }
        // Never released, as the worker is not.
        let address = UInt(bitPattern: Unmanaged.passRetained(made).toOpaque())
        worker.asWorker { $0.poller.store(address, ordering: .sequentiallyConsistent) }
      }
    }
  }
}

extension Scheduler {
  /// Whether this is a worker with a poller.
  var hasPoller: Bool {
    @inline(__always) get { worker?._withUnsafeGuaranteedRef { $0.poller.load(ordering: .acquiring) != 0 } ?? false }
  }

  /// The worker's poller, if it has one.
  ///
  /// Sequentially consistent, as are the store and the words of the inbox: a worker that has gone idle sees the poller
  /// whose maker found it still awake.
  var ownPoller: Unmanaged<Poller>? {
    let address = worker?._withUnsafeGuaranteedRef { $0.poller.load(ordering: .sequentiallyConsistent) } ?? 0
    return UnsafeRawPointer(bitPattern: address).map(Unmanaged.fromOpaque)
  }

  /// Returns the poller for the descriptors of this worker's coroutines; nil if this is no worker, or if none could be
  /// made.
  func pollerOfWorker() -> Poller? {
    guard let pool = readyQueue.pointee.workerPool?.takeUnretainedValue() else { return nil }
    let worker = pool.workers[workerIndex % pool.workers.count]
    if !worker.hasPoller { pool.makePollers(first: worker) }
    guard let poller = worker.ownPoller else { return nil }
    if worker !== self, worker.inbox.wakeUp() { worker.submit() }
    return poller.takeUnretainedValue()
  }

  /// Takes and delivers events if it is time to; called by a drain that begins.
  @inline(never)
  func pollDescriptors(_ now: UInt64) { ownPoller?._withUnsafeGuaranteedRef { $0.poll(now) } }
}

// MARK: - When to steal

// Back-off of stealing: a worker pauses if stealing does not pay.
//
// Costs. Stolen work is cold: its records and frames come from another processor's caches, its memory goes back to
// another thread's, and both sides wait for each other's locks.
// - It pays for a job that stays with the stealing worker, or launches more jobs.
// - It does not pay for a million jobs of twenty nanoseconds, launched in a loop. A handful of coroutines that
//   communicate over one channel are faster on one processor than on two that compete for it.
// - It does not pay to be woken for ready jobs that keep their thread (Carrier.swift).
//
// Rule. Only the stealing worker can judge, by the processor time for which the stolen jobs have kept it busy. If that
// is less than `worth` per stolen job three times in a row, the worker backs off: it neither inspects other workers nor
// accepts offers, until the pool's watchdog ends the back-off (Watchdog.swift). After that, one more steal that does
// not pay makes it back off again. One steal that pays resets the count.

/// The record of a worker's steals.
///
/// Used by the worker's drain only.
struct StealBackoff {
  /// The processor time for which a stolen job must keep the worker busy, in ns.
  ///
  /// Measured: a million empty jobs take 0.4 to 0.6 µs each if two workers share them, and 0.14 µs if one worker has
  /// them all. A larger value would keep jobs of a few µs on one worker.
  static var worth: UInt64 { 2_000 }
  /// The number of unprofitable steals in a row after which the worker backs off.
  static var limit: UInt8 { 3 }

  /// A point in a thread's processor time.
  ///
  /// Waiting for others' locks and processors does not count as work.
  struct Moment {
    var thread: UInt
    var nanoseconds: UInt64

    static var now: Moment { Moment(thread: currentThread, nanoseconds: Clock.ofThread) }
    static var currentThread: UInt { UInt(bitPattern: cco_thread()) }
  }

  private var count = 0
  private var taken = Moment(thread: 0, nanoseconds: 0)
  private var unprofitable: UInt8 = 0

  /// Records a steal of `count` jobs.
  mutating func took(_ count: Int, at now: Moment) {
    self.count = count
    taken = now
  }

  /// Records that the only ready jobs keep their threads, which counts as a steal that does not pay.
  mutating func foundOnlyKept() {
    // As if so many jobs had been stolen that no processor time of this thread would be enough.
    count = 1 << 52
    taken = Moment(thread: Moment.currentThread, nanoseconds: 0)
  }

  /// Whether an idle worker should try to steal.
  ///
  /// False means that it should back off; the next result is true. The clock is read only if there is a steal to judge.
  mutating func pays(at now: @autoclosure () -> Moment) -> Bool {
    guard count > 0 else { return true }
    let now = now()
    // If the drain is on another thread by now, the two times are not comparable. A change of thread takes a new time
    // slice, so usually the stolen jobs have lasted long.
    let isUnprofitable =
      now.thread == taken.thread && now.nanoseconds &- taken.nanoseconds < UInt64(count) &* Self.worth
    count = 0
    unprofitable = isUnprofitable ? unprofitable + 1 : 0
    guard unprofitable >= Self.limit else { return true }
    unprofitable = Self.limit - 1
    return false
  }
}

// MARK: - The number of processors

/// The number of processors that this process may use.
///
/// It is limited by the affinity mask, and by the CPU quotas of the process's cgroup and of all its ancestors, because
/// a container's limit is often set further up.
enum Processors {
  /// The number of workers of the shared scheduler: `usable`, unless the variable COROUTINE_WORKERS contains a number.
  ///
  /// Traps on any other value than 1 to 64: a server that silently ran with another number than configured would be
  /// worse.
  static var workers: Int {
    guard let setting = getenv("COROUTINE_WORKERS").map({ String(cString: $0) }), !setting.isEmpty else {
      return usable
    }
    guard let count = Int(setting), (1...64).contains(count) else {
      misuse("COROUTINE_WORKERS is '\(setting)'. Set it to a number of workers from 1 to 64, or leave it unset.")
    }
    return count
  }

  /// `workers`, read once: what the shared scheduler has, and what programs are told.
  static let chosen: Int = workers

  static let usable: Int = max(1, min(affinity, quota(membership: read("/proc/self/cgroup") ?? "", read)))

  private static var affinity: Int {
    allowed(status: read("/proc/self/status") ?? "") ?? Int(sysconf(Int32(_SC_NPROCESSORS_ONLN)))
  }

  /// Counts the bits of the line `Cpus_allowed:	ff,ffffffff` of /proc/self/status.
  static func allowed(status: String) -> Int? {
    guard let line = status.split(separator: "\n").first(where: { $0.hasPrefix("Cpus_allowed:") }) else { return nil }
    let count = line.dropFirst("Cpus_allowed:".count).reduce(0) { $0 + ($1.hexDigitValue?.nonzeroBitCount ?? 0) }
    return count > 0 ? count : nil
  }

  /// Returns the tightest quota in whole processors, rounded up.
  ///
  /// `membership` is the text of /proc/self/cgroup. `read` returns the text of a file.
  static func quota(membership: String, _ read: (String) -> String?) -> Int {
    var least = Int.max
    for line in membership.split(separator: "\n") {
      let parts = line.split(separator: ":", maxSplits: 2, omittingEmptySubsequences: false)
      guard parts.count == 3 else { continue }
      let isUnified = parts[1].isEmpty
      guard isUnified || parts[1].split(separator: ",").contains("cpu") else { continue }
      for path in ancestors(String(parts[2])) {
        let found =
          isUnified
          ? unified(read("/sys/fs/cgroup\(path)/cpu.max"))
          : legacy(
            read("/sys/fs/cgroup/cpu\(path)/cpu.cfs_quota_us"),
            read("/sys/fs/cgroup/cpu\(path)/cpu.cfs_period_us")
          )
        least = min(least, found ?? .max)
      }
    }
    return least
  }

  /// Returns "/a/b" and all its ancestors.
  ///
  /// The root is "".
  private static func ancestors(_ path: String) -> [String] {
    var names = path.split(separator: "/")
    var all = [""]
    while !names.isEmpty {
      all.append("/" + names.joined(separator: "/"))
      names.removeLast()
    }
    return all
  }

  private static func unified(_ text: String?) -> Int? {
    guard let words = text?.split(whereSeparator: \.isWhitespace), words.count == 2 else { return nil }
    return processors(Int(words[0]), Int(words[1]))
  }

  private static func legacy(_ quota: String?, _ period: String?) -> Int? {
    processors(number(quota), number(period))
  }

  private static func number(_ text: String?) -> Int? {
    text.flatMap { Int($0.filter { !$0.isWhitespace }) }
  }

  private static func processors(_ quota: Int?, _ period: Int?) -> Int? {
    guard let quota, let period, quota > 0, period > 0 else { return nil }
    return (quota + period - 1) / period
  }

  private static func read(_ path: String) -> String? {
    guard let file = fopen(path, "r") else { return nil }
    defer { fclose(file) }
    var bytes = [UInt8](repeating: 0, count: 4096)
    let count = fread(&bytes, 1, bytes.count, file)
    return String(decoding: bytes.prefix(count), as: UTF8.self)
  }
}

// MARK: - What programs see

extension CoroutineRuntime {
  /// The number of threads that run coroutines of the shared scheduler.
  ///
  /// That is the number of processors that the process may use, by its affinity and the quotas of its control groups;
  /// or what the environment variable `COROUTINE_WORKERS` says, a number from 1 to 64. It does not change. Any thread;
  /// starts no thread.
  public static var workerCount: Int { Processors.chosen }
}
