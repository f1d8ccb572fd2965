import Coroutine
import Dispatch
import Glibc
import Synchronization

/// What an event costs while the recorder is on: two coroutines of one queue that yield to one another, two events each
/// time.
func measureRecorder() throws {
  let switches = 4_000_000
  func yields() throws -> Double {
    let job = co_launch(on: DispatchQueue(label: "yields")) {
      let start = seconds(CLOCK_THREAD_CPUTIME_ID)
      let other = co_launch { for _ in 0..<switches / 2 { try co_yield() } }
      for _ in 0..<switches / 2 { try co_yield() }
      try other.join()
      return seconds(CLOCK_THREAD_CPUTIME_ID) - start
    }
    return try job.blockingWait() / Double(switches) * 1e9
  }
  func best() throws -> Double {
    var best = Double.infinity
    for _ in 0..<5 { best = min(best, try yields()) }
    return best
  }
  let off = try best()
  CoroutineRuntime.startRecording()
  let on = try best()
  report("recorder_off_yield", off)
  report("recorder_on_yield", on)
  report("recorder_event", (on - off) / 2)
}

/// The processor time after which a coroutine that computes is named; the longest of 20 runs, on the pool and on
/// queues.
func measureHogs() throws {
  let queue = DispatchQueue(label: "hogs")
  for onQueue in [false, true] {
    var (longest, named) = (0.0, 0)
    for run in 0..<20 {
      let name = "hog \(run)"
      let isNamed = Flag()
      CoroutineRuntime.onStall { stall in
        if stall.coroutine?.contains(name) == true { isNamed.raise() }
      }
      let body: @Sendable () -> Double = {
        let start = seconds(CLOCK_THREAD_CPUTIME_ID)
        var used = 0.0
        while !isNamed.isRaised, used < 5 { used = seconds(CLOCK_THREAD_CPUTIME_ID) - start }
        return used
      }
      let job = onQueue ? co_launch(on: queue, name: name, body) : co_launch(name: name, body)
      let used = try job.blockingWait()
      if isNamed.isRaised { named += 1 }
      longest = max(longest, used)
    }
    report(onQueue ? "hogs_queue_named" : "hogs_pool_named", Double(named))
    report(onQueue ? "hogs_queue" : "hogs_pool", longest * 1e3)
  }
}

/// The time after which a circle of two locks is named; the longest of 20 runs.
func measureCircles() throws {
  let queue = DispatchQueue(label: "circles")
  var longest = 0.0
  for _ in 0..<20 {
    let named = Promise<Double>()
    CoroutineRuntime.onDeadlock { _ in named.fulfill(seconds()) }
    // The watch sleeps between two searches.
    usleep(UInt32.random(in: 0..<80_000))
    let closed = Promise<Double>()
    // Launched by a coroutine of the same queue, so that both begin before one of them ends.
    let jobs = try co_launch(on: queue) {
      let (first, second) = (FairMutex(), FairMutex())
      return [(first, second, false), (second, first, true)].map { one, other, isLast in
        co_launch {
          try one.withLock {
            try co_yield()
            if isLast { closed.fulfill(seconds()) }
            try other.withLock {}
          }
        }
      }
    }
    .blockingWait()
    longest = max(longest, try named.blockingWait() - closed.blockingWait())
    for job in jobs { job.cancel() }
    for job in jobs { _ = try? job.blockingWait() }
  }
  report("circles", longest * 1e3)
}

final class Flag: Sendable {
  private let state = Atomic(false)
  var isRaised: Bool { state.load(ordering: .acquiring) }
  func raise() { state.store(true, ordering: .releasing) }
}
