internal import CCoroutine
internal import CCoroutineRuntime
import Dispatch
import Glibc
import Synchronization

// Returns the dead pages of coroutines that have waited for seconds: the memory of their stacks below the stack pointer
// (Sources/CCoroutineRuntime/DeadPages.c says why no frame is lost). A thread of its own sweeps over all live jobs.
//
//   NONE   --a scheduler goes idle, many stacks are in use--> WATCHING --every two seconds--> sweep
//     ^                                                          |
//     +--- no scheduler has run anything since the sweep began, -+
//          and each job that has begun waits, and is swept
//
// How long a job has waited. Each wait stores the time at which its carrier has read the clock last, for dumps
// (Carrier.park). That time is at most a time slice old, or as old as the code that the job ran before it waited. So no
// wait reads the clock for this, and a wait may look older than it is. That costs some page faults, and nothing else.
//
// Once for each wait. The sweeper stores the last 8 bits of the wait's epoch into the job's record, and compares them.
// Each wait has another epoch, so a switch does nothing for a sweep. A wait whose epoch ends as that of the last swept
// one, 256 waits or a multiple of it before, keeps its dead pages. So does the 256th wait of a job without a swept one.
//
//   the sweeper                                              others
//   1 under the live lock: picks jobs that wait, whose
//     time is old and that are not swept, and retains them
//   2 JobHold.tryTake: the job is parked, and stays so       a wake-up claims the wait, and queues the job
//   3 stores the epoch                                       its scheduler pops the job, and leaves it (deferWake)
//   4 the pages go back
//   5 JobHold.release: queues the job, if that was left
//   6 releases the job
//
// Invariants
//  1. From 2 to 5 no thread resumes the job: JobRecord.swift has the argument, the sweeper is a rescuer there. So the
//     job cannot end, and its stack is its own. `tryTake` acquires what the job did before it left its stack.
//  2. The stored epoch is read and written by the sweeper only, and one thread sweeps at a time (`sweeping`). While the
//     job is held it begins no wait, so the stored epoch is that of the wait whose pages go back.
//  3. `isWatching` changes from false to true by one exchange, so there is one thread. A scheduler that goes idle while
//     the thread is about to end finds it true, and relies on it. So the thread looks once more after it has set it to
//     false. If the two miss each other, the next scheduler that goes idle starts the watch.
//  4. Between 2 and 5 the sweeper takes no lock. It holds at most `batch` jobs, for some µs, unless the system gives
//     its processor to others or another thread maps memory: a wake-up may come that much later, once for each wait. A
//     job that ends between 5 and 6 is released by the sweeper, as by a dump. If that blocks, no more is swept.
//
// Not swept: jobs of simulated worlds, whose runs must not depend on a thread from outside; generators between two
// steps.
enum DeadPages {
  /// The age from which on a wait is swept, and the least time between two sweeps, in ns.
  ///
  /// Both together are the most that dead pages stay, if a sweep takes no longer than a hundredth of that.
  private static var age: UInt64 { 2_000_000_000 }
  private static var interval: UInt64 { 2_000_000_000 }
  /// The inverse of the part of a processor that the walks over live jobs may use, minus one.
  private static var idleFactor: UInt64 { 99 }
  /// The same for the time in which stacks are swept, of which every wait of seconds has a part.
  private static var heldFactor: UInt64 { 9 }
  /// The number of stacks in use below which there is too little to gain for a thread.
  private static var fewest: UInt64 { 32 }
  /// The most jobs that are held at once.
  fileprivate static var batch: Int { 8 }

  private static let isWatching = Atomic<Bool>(false)

  /// Starts the watch if many coroutines may be parked; called by a scheduler that goes idle.
  static func watchIfMany() {
    guard !isWatching.load(ordering: .relaxed), areMany else { return }
    guard !isWatching.exchange(true, ordering: .sequentiallyConsistent) else { return }
    if DetachedThread.start("co-dead-pages", { watch() }) != 0 { isWatching.store(false, ordering: .relaxed) }
  }

  private static var areMany: Bool { cco_stacks_in_use() >= fewest && !isSanitized }

  private static let isSanitized =
    cco_compiled_sanitizers() & (CCO_ADDRESS_SANITIZER.rawValue | CCO_THREAD_SANITIZER.rawValue) != 0

  private static func watch() {
    var pause = interval
    while true {
      DetachedThread.sleep(pause)
      let seen = activity
      let found = sweep(olderThan: age)
      pause = max(interval, found.walk * idleFactor, found.held * heldFactor)
      if areMany, found.open > 0 || activity != seen { continue }
      isWatching.store(false, ordering: .sequentiallyConsistent)
      guard areMany, activity != seen, !isWatching.exchange(true, ordering: .sequentiallyConsistent) else { return }
    }
  }

  /// A number that changes whenever a scheduler runs something.
  private static var activity: UInt64 {
    var sum: UInt64 = 0
    SchedulerRegistry.visitAll { sum &+= $0.lastClockRead.load(ordering: .relaxed) }
    return sum
  }

  /// What a sweep has found.
  struct Found {
    /// The number of waits whose stacks have lost what dead pages they had.
    var swept = 0
    /// The number of jobs that the next sweep must look at: they run, or wait for a shorter time.
    var open = 0
    /// The time of the walk itself, and that for the stacks.
    var walk: UInt64 = 0
    var held: UInt64 = 0
  }

  /// Returns the dead pages of the jobs that have waited for at least `age` ns.
  ///
  /// Any thread, one at a time for each scheduler.
  static func sweep(olderThan age: UInt64) -> Found {
    var found = Found()
    // Not `withLock`: the last reference to a job may be released here, and so code of the program may run, which must
    // not find that its thread holds a lock that is checked.
    sweeping.acquire()
    defer { sweeping.release() }
    let start = Clock.now
    SchedulerRegistry.visitAll { scheduler in
      guard !scheduler.host.controlsOrder else { return }
      let now = scheduler.clock
      found.open += scheduler.visitParked(since: now - min(now, age)) { jobs in
        let start = Clock.now
        drop(jobs, &found)
        found.held += Clock.now - start
      }
    }
    found.walk = Clock.now - start - found.held
    return found
  }

  /// Held during a sweep: a scheduler remembers the place of one.
  private static let sweeping = ThreadLock()

  /// Performs steps 2 to 5 for some jobs, which the caller has retained.
  private static func drop(_ jobs: [AnyJob], _ found: inout Found) {
    withUnsafeTemporaryAllocation(of: UnsafePointer<cco_context>.self, capacity: batch) { contexts in
      var held = InlineArray<8, JobRef?>(repeating: nil)
      var count = 0
      for job in jobs {
        let record = job.record
        guard record.hold.tryTake() != nil else {
          found.open += 1
          continue
        }
        // `tryTake` gives only jobs that have a stack.
        contexts.initializeElement(at: count, to: UnsafePointer(record.pointee.context.unsafelyUnwrapped))
        held[count] = record
        count += 1
        record.markSwept()
      }
      guard count > 0 else { return }
      found.swept += cco_drop_dead_pages(contexts.baseAddress.unsafelyUnwrapped, count)
      for index in 0..<count { held[index]?.hold.release() }
    }
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// The last bits of the epoch in the word `wait`.
  fileprivate static func lastBits(_ wait: UInt64) -> UInt8 { UInt8(truncatingIfNeeded: wait >> 8) }

  /// Called while the job is held.
  fileprivate func markSwept() { pointee.sweptEpoch = Self.lastBits(pointee.wait.load(ordering: .relaxed)) }
}

extension Scheduler {
  /// The most jobs that a sweep looks at in one critical section.
  private static var mostLookedAt: Int { 128 }

  /// Calls `body` with the live jobs that have waited since `time` or longer, and are not swept, a few at a time, under
  /// no lock; returns the number of the others that have begun, and are not swept.
  fileprivate func visitParked(since time: UInt64, _ body: ([AnyJob]) -> Void) -> Int {
    liveLock.withLock { liveness.nextSwept = liveness.first }
    var jobs: [AnyJob] = []
    jobs.reserveCapacity(DeadPages.batch)
    var open = 0
    var isOver = false
    while !isOver {
      var some = InlineArray<8, Unmanaged<AnyJob>?>(repeating: nil)
      var count = 0
      liveLock.lock()
      for _ in 0..<Self.mostLookedAt {
        guard count < some.count, let job = liveness.nextSwept else { break }
        liveness.nextSwept = job.pointee.nextLive
        let wait = job.pointee.wait.load(ordering: .relaxed)
        guard wait & 0xFF == 1 else {
          // It runs, or is ready. One that has not begun brings its scheduler out of idle when it does.
          if job.pointee.waitKind.load(ordering: .relaxed) != WaitKind.start.rawValue { open += 1 }
          continue
        }
        if job.pointee.sweptEpoch == JobRef.lastBits(wait) { continue }
        if job.pointee.waitingSince.load(ordering: .relaxed) > time {
          open += 1
        } else {
          some[count] = job.handle.retain()
          count += 1
        }
      }
      isOver = liveness.nextSwept == nil
      liveLock.unlock()
      guard count > 0 else {
        // The lock is not fair, and a launch may wait for it.
        sched_yield()
        continue
      }
      for index in 0..<count { if let job = some[index] { jobs.append(job.takeRetainedValue()) } }
      body(jobs)
      jobs.removeAll(keepingCapacity: true)
    }
    return open
  }
}

// MARK: - Trimming of pooled stacks

// Returns the memory of unused stacks and cells some seconds after their last use. It does not do so at once, because a
// returned page must be faulted in and cleared again. That costs many times as much as a hot stack, and a program that
// goes idle between two bursts would pay it in each burst.
//
//   IDLE    --a scheduler goes idle, many stacks are pooled--> WATCHING --every two seconds--> trim the unneeded stacks
//      ^                                                          |
//      +--------------- few stacks are pooled --------------------+
//
// `isWatching` changes from false to true by one exchange, so there is one watch. A scheduler that goes idle while the
// watch is about to end finds it true, and relies on the watch. So the watch checks once more after it has set it to
// false.

enum StackTrimmer {
  /// The number of pooled stacks of a size class that stay hot: more than a burst of launches needs, and at 4 KiB each
  /// little for a server.
  ///
  /// Of classes of 128 KiB and more fewer stay, because a stack may have been used to its end (cco_trim_surplus).
  private static let keep = 1024
  private static let isWatching = Atomic<Bool>(false)
  private static let queue = DispatchQueue(label: "coroutine.stacks", qos: .utility)

  /// The number of pooled cells that keep their memory, 4 MiB.
  private static let keptCells = 16_384

  private static var areMany: Bool {
    cco_has_surplus(keep) || cco_cells_pooled() > UInt64(2 * keptCells)
  }

  /// Starts the watch if much is pooled; called by a scheduler that goes idle.
  static func trimIfMany() {
    guard !isWatching.load(ordering: .relaxed), areMany else { return }
    if !isWatching.exchange(true, ordering: .sequentiallyConsistent) { watch() }
  }

  /// `idle` is the number of rounds that found nothing; after two, the remaining stacks are in use.
  private static func watch(_ idle: Int = 0) {
    // A timer, because a world of async code, in which another world ends, reports `asyncAfter` as a way out of it.
    let timer = DispatchSource.makeTimerSource(queue: queue)
    timer.schedule(deadline: .now() + .seconds(2))
    timer.setEventHandler {
      timer.cancel()
      let trimmed = cco_trim_surplus(keep) + cco_cells_trim(keptCells)
      if areMany, idle < 2 { return watch(trimmed == 0 ? idle + 1 : 0) }
      isWatching.store(false, ordering: .sequentiallyConsistent)
      // On behalf of a scheduler that went idle meanwhile and relied on this watch.
      if idle < 2 { trimIfMany() }
    }
    timer.activate()
  }
}
