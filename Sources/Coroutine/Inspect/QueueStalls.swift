internal import CLinux
import Synchronization

// The watch over queues of the program that host coroutines: the same report as for workers (StallReport.swift), and
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
// Cost: without a handler one load for a drain; with one, the number of the thread (a system call) and two stores.

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
