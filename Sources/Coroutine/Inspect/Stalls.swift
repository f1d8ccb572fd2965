internal import CCoroutineInspect
internal import CLinux
import Synchronization

extension CoroutineRuntime {
  /// A coroutine, or a Task that runs on the worker pool, that has kept a thread for long, without a suspension: one of
  /// the pool's, or one that runs a queue of the program.
  ///
  /// It computes, or it has called a function that blocks the thread; ``activity-swift.property`` says which. Use
  /// ``co_blocking(_:)`` for blocking calls, and ``co_yield()`` in long computations; from a Task, await a coroutine
  /// that calls co_blocking, or call `Task.yield()`. See ``CoroutineRuntime/onStall(after:_:)``.
  public struct Stall: Sendable, CustomStringConvertible {
    /// The name, the number and the launch site of the coroutine; nil if it was not found among very many, and if
    /// ``isTask`` is true.
    public let coroutine: String?
    /// The place where the coroutine was launched, as `file:line`; nil if ``coroutine`` is.
    public let launchSite: String?
    /// The name of the coroutine; those of a server's connections have one launch site, and say here what they serve.
    let name: String?
    /// Whether a Task, a part of which the worker ran as a job, has kept the worker; false for a coroutine.
    public let isTask: Bool
    /// The Task's job in words.
    let swiftJob: String?
    /// How long the coroutine had kept the worker by then, at least.
    ///
    /// This is the processor time that the thread has used, and the time for which it has slept in the kernel. The time
    /// for which it has waited for a processor is no part of it.
    public let duration: Duration
    /// The name of the worker, or of the queue.
    public let worker: String
    /// The kernel's number of the thread, as `top -H` and /proc/self/task show it.
    public let thread: Int32
    /// Where the coroutine was: the return addresses of its frames, the innermost first; see
    /// ``CoroutineRuntime/frames(at:)``.
    ///
    /// The thread is asked for them by a signal, SIGURG, and only the thread of a stall that is reported. Empty where
    /// that is not possible: if the thread does not answer within 20 ms, on a queue 4 ms; in a system call that would
    /// fail because of the signal, such as a sleep or a poll; for a Task; in builds with a sanitizer; if the program
    /// handles SIGURG.
    public let stack: [UInt]
    /// What the thread has done for most of that time.
    public let activity: Activity
    /// Whether it waits in Swift's lock of a lazy initial value, whose initialiser has not ended.
    let awaitsInitialValue: Bool
    /// How long the coroutine has gone on since its cancellation; nil for the report of the stall.
    ///
    /// A stall is reported once more, with this time, if the coroutine was cancelled and computes for ten seconds after
    /// that. Most often it is a loop that catches the errors of its waits, which throw at once.
    public let sinceCancellation: Duration?
    /// Whether the coroutine was cancelled.
    let isCancelled: Bool

    /// What a thread does that a coroutine keeps.
    public struct Activity: Sendable, Hashable, CustomStringConvertible {
      enum Kind: Sendable, Hashable {
        case computing
        case systemCall(String)
        case asleep
      }

      let kind: Kind

      /// It uses a processor.
      public static var computing: Activity { Activity(kind: .computing) }
      /// It sleeps in the system call of this name, `read` for example.
      ///
      /// A lock that blocks threads sleeps in `futex`, and so does a `static let` whose initial value another thread
      /// computes. (On the thread that has begun to compute it, it spins: ``computing``.)
      public static func systemCall(_ name: String) -> Activity { Activity(kind: .systemCall(name)) }
      /// It sleeps in the kernel: for a page of memory, or in a call that the kernel does not name to this process.
      public static var asleep: Activity { Activity(kind: .asleep) }

      /// The name of the system call in which the thread sleeps; nil for other activities.
      public var systemCall: String? {
        if case .systemCall(let name) = kind { name } else { nil }
      }

      /// `computing`, `in read(2)`, or `asleep in the kernel`.
      public var description: String {
        switch kind {
        case .computing: "computing"
        case .systemCall(let name): "in \(name)(2)"
        case .asleep: "asleep in the kernel"
        }
      }
    }

    /// A sentence that says what to do.
    public var description: String {
      if let sinceCancellation {
        let time = sinceCancellation.nanoseconds / 1_000_000
        return "\(coroutine ?? "a coroutine") has gone on for \(time) ms after its cancellation, and keeps \(worker), "
          + "\(activity): every wait of it throws at once, so a loop that catches these errors never ends; throw them "
          + "on, or end the loop when co_isCancelled is true"
      }
      let milliseconds = duration.nanoseconds / 1_000_000
      let subject = swiftJob ?? coroutine ?? "a coroutine"
      let what = awaitsInitialValue ? "\(activity), in swift_once" : "\(activity)"
      return "\(subject) has kept \(worker) for \(milliseconds) ms without a suspension, \(what): \(advice)"
    }

    private var advice: String {
      let blocking =
        isTask
        ? "await the value of a coroutine that calls co_blocking for blocking calls"
        : "move blocking calls into co_blocking"
      if awaitsInitialValue {
        return
          "it wants a `static let` or a global whose initialiser waits, in another coroutine; use Once for that value"
      }
      return switch activity.kind {
      case .computing where isCancelled:
        "it was cancelled: let long computations call co_checkCancelled, and loops throw the errors of their waits on"
      case .computing: "let long computations \(isTask ? "await Task.yield" : "call co_yield"), or \(blocking)"
      case .systemCall("futex"):
        "a lock that blocks threads, perhaps a `static let`; use the locks of this library, Once in place of a `static let` "
          + "whose initial value waits, or \(blocking)"
      case .systemCall, .asleep: blocking
      }
    }

    /// The time after which a worker counts as stalled, in ns.
    static var threshold: UInt64 { StallReports.threshold.load(ordering: .relaxed) }
    // Sound because it is read and written under `lock`.
    nonisolated(unsafe) private static var handler: (@Sendable (Stall) -> Void)? = { StallLines.write($0) }
    private static let lock = SpinLock()

    static func set(_ threshold: Duration, _ handler: (@Sendable (Stall) -> Void)?) {
      StallReports.threshold.store(UInt64(max(1_000_000, threshold.nanoseconds)), ordering: .relaxed)
      // The old handler is released after the lock is left, because that may run foreign code.
      lock.lock()
      let old = self.handler
      self.handler = handler
      lock.unlock()
      if handler != nil { QueueStalls.watch() }
      _ = consume old
    }

    /// Without `withLock`, because a closure that returns a closure allocates, which must not happen under the lock.
    static var currentHandler: (@Sendable (Stall) -> Void)? {
      lock.lock()
      defer { lock.unlock() }
      return handler
    }
  }
}

extension CoroutineRuntime.Stall {
  /// The name without its digits: by ports, numbers of requests and keys in paths, names of one handler differ.
  fileprivate var kindOfWork: String { String((name ?? "").unicodeScalars.filter { !("0"..."9").contains($0) }) }
}

/// The handler while the program has set none: writes one line to standard error about the first stall of each launch
/// site, and of each name there; sixteen at most of one site.
enum StallLines {
  private static let lock = ThreadLock()
  // Sound because it is accessed under `lock`.
  nonisolated(unsafe) private static var written: [String: Set<String>] = [:]
  private static var mostOfSite: Int { 16 }
  /// The number of lines that other threads are about to write; a test waits for them.
  static let writing = Atomic<Int>(0)

  static func write(_ stall: CoroutineRuntime.Stall) {
    let isFirst = lock.withLock {
      var names = written[stall.launchSite ?? ""] ?? []
      let kind = (stall.sinceCancellation == nil ? "" : "cancelled ") + stall.kindOfWork
      guard names.count < mostOfSite, names.insert(kind).inserted else { return false }
      written[stall.launchSite ?? ""] = names
      return true
    }
    if isFirst { write { "Coroutine: \(stall)\(functions(on: stall.stack))\n" } }
  }

  /// Writes a line on another thread.
  ///
  /// The caller is the watchdog, without which nothing is taken over: names of functions come from files, and where
  /// nothing reads standard error the write never ends.
  fileprivate static func write(_ line: @escaping @Sendable () -> String) {
    writing.add(1, ordering: .relaxed)
    let code = DetachedThread.start("co-stall-line") {
      writeToStandardError(line(), mayWait: true)
      writing.subtract(1, ordering: .releasing)
    }
    if code == 0 { return }
    writing.subtract(1, ordering: .relaxed)
    // A line is short enough for one write, which does not block where there is room.
    if clinux_error_has_room(0) { writeToStandardError(line()) }
  }

  /// The innermost three functions of the program, or nothing if none is known.
  static func functions(on stack: [UInt]) -> String {
    let names = Symbols.named(stack).lazy.filter { $0.owner == .program }.compactMap(\.frame.symbol).prefix(3)
    return names.isEmpty ? "" : "; in \(names.map(\.asLine).joined(separator: ", called by "))"
  }
}

// MARK: - Who keeps a thread

// Who keeps a thread. The watchdog asks for the workers of its pool (Watchdog.swift), and QueueStalls for the
// queues of the program.

extension CoroutineRuntime.Stall {
  /// Puts the reports where the kernel finds them; called before the first scheduler is there.
  static func listen() {
    StallReports.report = { $0.reportStall($1, &$2, searching: $3) }
    StallReports.queueDrainBegins = { QueueStalls.begins($0.thread) }
    StallReports.sparesAreTaken = { count in
      StallLines.write {
        "Coroutine: all \(count) spare workers are taken by coroutines and Tasks that keep their threads, and what waits "
          + "behind them waits on: move blocking calls into co_blocking\n"
      }
    }
  }
}

extension Scheduler {
  /// Reports the coroutine or the Task that has kept this scheduler's thread to the handler; returns whether it has
  /// done so.
  ///
  /// A scheduler reads its clock only after some jobs, so the time may be that of several. A job is reported only if
  /// it was found there a threshold ago, and has neither waited nor yielded since. For the same reason the search goes
  /// on after a report, four times in a threshold: the next job may stall before the scheduler reads its clock. Called
  /// after each sample of the thread. `homes` are the schedulers in whose lists the job may be.
  fileprivate func reportStall(
    _ busy: BusyWorker,
    _ suspect: inout StallWatch.Suspect?,
    searching homes: () -> [Scheduler]
  ) -> Bool {
    let use = busy.use
    let threshold = CoroutineRuntime.Stall.threshold
    // The search takes the locks of all workers, so it is made only for a handler and a likely stall.
    guard use.total > threshold / ThreadUse.samples, let handler = CoroutineRuntime.Stall.currentHandler else {
      return false
    }
    if let reported = suspect?.reported, use.total - reported < threshold / 4 { return false }
    let changes = swiftJobChanges
    let isTask = changes & 1 != 0
    let (job, isSure) = isTask ? (nil, false) : runningJob(homes())
    // Without a job, the thread is waiting for a processor, or the coroutine has just ended.
    if job == nil, isSure { return false }
    let id = isTask ? .max : job?.id ?? 0
    let mark = isTask ? changes : job?.record.stallMark ?? 0
    guard let found = suspect, found.id == id, found.mark == mark else {
      suspect = StallWatch.Suspect(id: id, mark: mark, total: use.total)
      return false
    }
    let isCancelled = job?.isCancelled ?? false
    if isCancelled, found.cancelled == nil { suspect?.cancelled = use.total }
    if found.reported != nil {
      suspect?.reported = use.total
      let patience = StallReports.patienceWithCancelled.load(ordering: .relaxed)
      // Without an activity it has slept for longer than it has computed: a later sample tells of it.
      if let cancelled = found.cancelled, cancelled != .max, use.total - cancelled >= patience, use.activity != nil {
        suspect?.cancelled = .max
        tell(handler, busy, job, isTask, kept: use.total - found.total, mark, sinceCancellation: use.total - cancelled)
      }
      // It counts as one.
      return false
    }
    let kept = use.total - found.total
    guard kept > threshold, use.activity != nil else { return false }
    suspect?.reported = use.total
    cco_note_incident(CCO_INCIDENT_STALL)
    tell(handler, busy, job, isTask, kept: kept, mark, sinceCancellation: nil)
    return true
  }

  /// Calls the handler about what keeps the thread.
  private func tell(
    _ handler: (CoroutineRuntime.Stall) -> Void,
    _ busy: BusyWorker,
    _ job: AnyJob?,
    _ isTask: Bool,
    kept: UInt64,
    _ mark: UInt64,
    sinceCancellation: UInt64?
  ) {
    guard let activity = busy.use.activity else { return }
    let isOurs = host.hasOwnThread
    let stack = job.map { ThreadStack.read(of: busy.thread, activity, since: mark, $0, isOurs: isOurs).frames } ?? []
    handler(
      CoroutineRuntime.Stall(
        coroutine: job?.summary,
        launchSite: job?.record.label.pointee.launchSite.description,
        name: job?.shownName,
        isTask: isTask,
        swiftJob: isTask ? swiftJobInWords ?? "a Swift Task's job" : nil,
        duration: .nanoseconds(Int64(kept)),
        worker: label,
        thread: busy.thread,
        stack: stack,
        activity: activity,
        awaitsInitialValue: cco_waits_for_initial_value(stack, stack.count),
        sinceCancellation: sinceCancellation.map { .nanoseconds(Int64($0)) },
        isCancelled: job?.isCancelled ?? false
      )
    )
  }

  /// Returns the job that runs on this scheduler, and whether the search was complete.
  ///
  /// It inspects the live jobs of each of `homes`, because a job is in the list of the scheduler where it was launched.
  /// It is bounded, because launches and ends of jobs wait for the lock.
  private func runningJob(_ homes: [Scheduler]) -> (job: AnyJob?, isSure: Bool) {
    var isSure = true
    for home in homes {
      let found: AnyJob? = home.liveLock.withLock {
        var next = home.firstLive
        var inspected = 0
        while let job = next, inspected < 10_000 {
          if job.seemsRunning, job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == address {
            return job.handle.takeUnretainedValue()
          }
          next = job.pointee.nextLive
          inspected += 1
        }
        isSure = isSure && next == nil
        return nil
      }
      if let found { return (found, true) }
    }
    return (nil, isSure)
  }

  private var address: UnsafeMutableRawPointer { Unmanaged.passUnretained(self).toOpaque() }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// The sum of the word `wait`, which each wait changes, and the time of the last wait or yield (`Carrier.giveWay`).
  ///
  /// Until the scheduler reads its clock again, the time changes by less than the 256 that each wait adds to the word.
  /// So each wait and each yield changes the sum. A later yield can repeat the sum of a wait, if it uses up the
  /// switches that are left: then the scheduler reads its clock, and the search for a stall begins anew.
  var stallMark: UInt64 {
    pointee.wait.load(ordering: .relaxed) &+ pointee.waitingSince.load(ordering: .relaxed)
  }

  /// Whether a live job neither waits, nor is ready, nor is still to start, nor runs on its launcher's thread.
  fileprivate var seemsRunning: Bool {
    let kind = pointee.waitKind.load(ordering: .relaxed)
    return pointee.wait.load(ordering: .relaxed) & 0xFF == 0
      && kind != WaitKind.start.rawValue && kind != WaitKind.ready.rawValue
      && !hold.isForeign
  }
}

extension ThreadUse {
  /// The thread's activity for most of the time; nil if it slept in a call that it has left.
  fileprivate var activity: CoroutineRuntime.Stall.Activity? {
    if processor >= asleep { return .computing }
    if call >= 0 { return .systemCall(clinux_call_name(call).map { String(cString: $0) } ?? "system call \(call)") }
    return call == CLINUX_THREAD_RUNS.rawValue ? nil : .asleep
  }
}

// MARK: - The frames of a running coroutine

// The frames of the coroutine that a thread runs. The thread is interrupted by a signal, whose handler walks them
// (AskThread.c). Only the thread of a reported stall is asked, and that of a coroutine that has run for long when a
// dump is taken (RunningStacks.swift): a signal makes system calls of the program's code fail.

enum ThreadStack {
  private static var most: Int { 128 }
  /// How long an answer is waited for, in ns: of a thread of ours, and of one that may block the signal, as those of
  /// Dispatch do.
  static let patience = Atomic<UInt64>(20_000_000)
  private static var shortPatience: UInt64 { 4_000_000 }

  /// The frames of `job`, which the thread runs since its `stallMark` was `mark`, and whether they reach the launch;
  /// empty if it could not be asked, or has gone on meanwhile.
  ///
  /// One call at a time for each thread; two threads may ask at once, and then one of them gets nothing.
  static func read(
    of thread: Int32,
    _ activity: CoroutineRuntime.Stall.Activity,
    since mark: UInt64,
    _ job: AnyJob,
    isOurs: Bool
  ) -> (frames: [UInt], isWhole: Bool) {
    let time = isOurs ? patience.load(ordering: .relaxed) : shortPatience
    var isWhole = false
    // What it does now, which need not be what it has done most of the time.
    guard thread != 0, activity.toleratesSignals, clinux_tolerates_signals(thread) else { return ([], isWhole) }
    let frames = [UInt](unsafeUninitializedCapacity: most) { buffer, count in
      count = cco_ask_thread(thread, buffer.baseAddress.unsafelyUnwrapped, buffer.count, time, &isWhole)
    }
    return job.record.stallMark == mark ? (frames, isWhole) : ([], false)
  }
}

extension CoroutineRuntime.Stall.Activity {
  /// Whether a signal with SA_RESTART changes nothing for the interrupted code.
  ///
  /// The kernel restarts the other calls not, or not those with a time limit (signal(7)).
  var toleratesSignals: Bool { Self.toleratesSignals(description) }

  /// The same of an activity in words.
  static func toleratesSignals(_ described: String) -> Bool { tolerant.contains(described) }

  private static let tolerant: Set<String> = Set(
    ["read", "write", "readv", "writev", "futex", "flock", "wait4", "waitid", "openat", "fsync", "fdatasync"]
      .map { systemCall($0).description } + [computing.description]
  )
}

// MARK: - The queues of the program

// The watch over queues of the program that host coroutines: the same report as for workers, and
// nothing is taken over. It begins with the first handler of CoroutineRuntime.onStall.
//
//   OFF --the first handler--> RESTING --a drain begins--> WATCHING --ten looks without a drain--> RESTING
//
// A drain of a queue notes its thread in the host (`begins`), and clears it at its end. The thread looks every 10 ms at
// each queue whose drain has not read its clock since the last look; and sixteen times in a threshold while it finds
// one, so that a stall of 100 ms is reported in the 50 ms behind it. A queue with many short coroutines costs a look
// two loads.
//
// Invariants
//  1. `word` leaves RESTING for WATCHING by the exchange of one thread, which wakes the watch, and WATCHING for RESTING
//     by the watch. A drain stores its thread, then reads the word; the watch stores RESTING, then looks once more. So
//     one of them sees the other (both sequentially consistent).
//  2. `seen` belongs to the watch's thread. It holds no scheduler: a queue may be released at any time.
//
// Cost: without a handler one load for a drain; with one, the number of the thread (a system call) and two stores. The
// first drain on a thread lets SIGURG in, which makes one call more.

enum QueueStalls {
  private static var off: UInt32 { 0 }
  private static var resting: UInt32 { 1 }
  private static var watching: UInt32 { 2 }
  private static let word = Atomic<UInt32>(off)

  /// The longest time between two looks, in ns, and the shortest.
  private static var interval: UInt64 { 10_000_000 }
  private static var shortInterval: UInt64 { 2_000_000 }
  /// The number of looks without a busy queue after which the watch rests.
  private static var patience: Int { 10 }

  private struct Seen {
    var busy: BusyWorker
    var stalls = StallWatch()
  }

  /// Begins the watch, once in a process.
  static func watch() {
    guard word.compareExchange(expected: off, desired: resting, ordering: .acquiringAndReleasing).exchanged else {
      return
    }
    StallReports.watchQueues.store(true, ordering: .relaxed)
    guard DetachedThread.start("co-stalls", serve) != 0 else { return }
    StallReports.watchQueues.store(false, ordering: .relaxed)
    word.store(off, ordering: .relaxed)
  }

  /// Notes the calling thread for the drain of a queue, and returns its number; called while queues are watched.
  static func begins(_ thread: borrowing Atomic<Int32>) -> Int32 {
    let number = clinux_thread_id()
    // Dispatch blocks it, and then a stall has no stack.
    clinux_let_in_questions()
    thread.store(number, ordering: .sequentiallyConsistent)
    if word.load(ordering: .sequentiallyConsistent) == resting,
      word.exchange(watching, ordering: .sequentiallyConsistent) == resting
    {
      withAddress { clinux_futex_wake($0) }
    }
    return number
  }

  @Sendable private static func serve() {
    var seen: [ObjectIdentifier: Seen] = [:]
    var idleLooks = 0
    while true {
      let next = look(&seen)
      idleLooks = next == nil ? idleLooks + 1 : 0
      if idleLooks < patience {
        _ = clinux_futex_wait(neverWoken, 0, next ?? interval)
        continue
      }
      seen = [:]
      word.store(resting, ordering: .sequentiallyConsistent)
      if look(&seen) != nil {
        word.store(watching, ordering: .sequentiallyConsistent)
      } else {
        while word.load(ordering: .acquiring) == resting { withAddress { _ = clinux_futex_wait($0, resting, 0) } }
      }
      idleLooks = 0
    }
  }

  /// Looks at every queue once; returns the time until the next look, in ns, or nil if no drain runs in one of them.
  private static func look(_ seen: inout [ObjectIdentifier: Seen]) -> UInt64? {
    let now = Clock.now
    var isKept = false
    var next: [ObjectIdentifier: Seen] = [:]
    SchedulerRegistry.visitAll { scheduler in
      guard let host = scheduler.host as? QueueHost else { return }
      let thread = host.thread.load(ordering: .sequentiallyConsistent)
      guard thread != 0 else { return }
      let last = seen[ObjectIdentifier(scheduler)]
      var single = Seen(busy: BusyWorker(scheduler, on: thread, now, since: last?.busy))
      if let last, single.busy.isUnchanged {
        isKept = true
        single.stalls = last.stalls
        single.busy.sample(now, in: "/proc/self/task")
        single.stalls.sampled(single.busy, of: scheduler) { homes(scheduler) }
        _ = single.stalls.countStalls(of: single.busy)
      }
      next[ObjectIdentifier(scheduler)] = single
    }
    seen = next
    if next.isEmpty { return nil }
    return isKept
      ? min(interval, max(shortInterval, CoroutineRuntime.Stall.threshold / ThreadUse.samples)) : interval
  }

  /// The scheduler first, where most of its coroutines were launched.
  private static func homes(_ scheduler: Scheduler) -> [Scheduler] {
    var homes = [scheduler]
    SchedulerRegistry.visitAll { if $0 !== scheduler { homes.append($0) } }
    return homes
  }

  private static func withAddress(_ body: (UnsafePointer<UInt32>) -> Void) {
    withUnsafePointer(to: word) { body(UnsafeRawPointer($0).assumingMemoryBound(to: UInt32.self)) }
  }

  // Sound because nothing writes there: a wait for it lasts for its time.
  nonisolated(unsafe) private static let neverWoken: UnsafePointer<UInt32> = {
    let word = UnsafeMutablePointer<UInt32>.allocate(capacity: 1)
    word.initialize(to: 0)
    return UnsafePointer(word)
  }()
}

// MARK: - The handler

extension CoroutineRuntime {
  /// Calls `handler` once for each time that a coroutine, or a Task that runs there (``WorkerPoolExecutor``), keeps a
  /// thread of the worker pool for `threshold` or longer, without a wait or a yield; or a coroutine a queue of the
  /// program.
  ///
  /// The time counts for which the thread uses a processor, or sleeps in a system call or elsewhere in the kernel;
  /// ``CoroutineRuntime/Stall/activity-swift.property`` says which. The time for which it waits for a processor does
  /// not count, so a machine with more work than processors makes no stalls.
  ///
  /// The work that waits behind it is taken over by another worker, or by a spare one if all are busy, at
  /// most 64. That happens without a handler as well. On a queue of the program nothing is taken over. Queues are
  /// watched from the first call with a handler on, by a thread that looks every 10 ms while coroutines run there;
  /// blocks of their own are not watched.
  ///
  /// Until the first call, a handler of the library's writes one line to standard error about the first stall of each
  /// launch site, after 100 ms; where names there differ by more than numbers, of each name, up to sixteen. With nil,
  /// none is called.
  ///
  /// Never suspends; any thread, at any time; the last call counts for the whole process. `handler` is called on a
  /// thread of the runtime, and must not block. The watch is coarse: a stall is noticed up to 50 ms late, or by a
  /// quarter of the threshold more if that is long. Where /proc is not mounted, the kernel does not say whether a
  /// thread sleeps: then only a thread whose processor time stands still for ten times the threshold counts as asleep.
  ///
  /// - Parameters:
  ///   - threshold: The time; at least one millisecond.
  ///   - handler: Receives the stall; nil for none.
  public static func onStall(
    after threshold: Duration = .milliseconds(100),
    _ handler: (@Sendable (Stall) -> Void)?
  ) {
    Stall.set(threshold, handler)
  }
}
