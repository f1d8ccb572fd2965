import Coroutine
import Dispatch
import Glibc

// The main thread waits for what may need the main queue, or the main actor. MainThreadTests starts it. The status is 7
// if the wait has returned that.

@MainActor private func onMainActor() -> Int32 { 7 }

/// Returns nil if that is no name of a way to wait.
@MainActor func waitOnMainThread(_ way: String) throws -> Int32? {
  switch way {
  case "main actor": return try co_launch { try co_await { await onMainActor() } }.blockingWait()
  case "switch":
    let job = co_launch { () throws -> Int32 in
      try co_switch(to: .main)
      return 7
    }
    return try job.blockingWait()
  case "sync": return try co_launch { try co_blocking { DispatchQueue.main.sync { 7 } } }.blockingWait()
  case "callback":
    let job = co_launch { try co_suspend { resumer in DispatchQueue.main.async { resumer.resume(7 as Int32) } } }
    return try job.blockingWait()
  case "promise": return try Promise { resumer in Task { @MainActor in resumer.resume(7) } }.blockingWait()
  case "neither":
    let job = co_launch { () throws -> Int32 in
      try co_delay(.milliseconds(5))
      return 7
    }
    return try job.blockingWait()
  case "without 0 to 2":
    var ends: [Int32] = [-1, -1]
    // Two of the numbers are a program's, and the third is free until the first use.
    guard pipe(&ends) == 0, ends == [0, 1], write(ends[1], "1", 1) == 1 else { return 1 }
    try co_launch { try co_untilReadable(0) }.blockingWait()
    let next = open("/dev/null", O_RDONLY)
    return next > 2 && fcntl(2, F_GETFD) == 0 ? 7 : 2
  case "no poll":
    // A process that may open nothing more: poll fails where the limit is below the number of its descriptors. The
    // main thread lowers it, when it waits, and after the first timer: Dispatch ends a process in which it cannot open
    // the descriptors of the queue and of timers.
    let job = co_launch { () throws -> Int32 in
      try co_blocking {
        let fired = DispatchSemaphore(value: 0)
        DispatchQueue.global().asyncAfter(deadline: .now() + .milliseconds(1)) { fired.signal() }
        fired.wait()
        DispatchQueue.main.sync {
          var limit = rlimit(rlim_cur: 0, rlim_max: 0)
          setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
        }
      }
      try co_delay(.milliseconds(1_500))
      return 7
    }
    let end = try job.blockingWait()
    return job.isFinished ? end : 1
  case "in a block":
    return try Promise { resumer in DispatchQueue.main.async { resumer.resume(with: Result { try waitLong() }) } }
      .blockingWait()
  case "after dispatchMain":
    // The queue was served before.
    guard try waitOnMainThread("switch") == 7 else { return 1 }
    DispatchQueue.main.async { exit((try? waitLong()) ?? 1) }
    dispatchMain()
  default: return nil
  }
}

/// Waits for a coroutine that might need the main queue, until a line says that this keeps the queue.
///
/// Not for a time: the waiting thread may begin its second late, or look late at its end. But never early: then the
/// status is 3.
private func waitLong() throws -> Int32 {
  let start = ContinuousClock.now
  let job = co_launch(name: "slow") { () throws -> Int32 in
    while !hasSaid() { try co_delay(.milliseconds(10)) }
    return start.duration(to: .now) >= .seconds(1) ? 7 : 3
  }
  return try job.blockingWait()
}

/// Whether standard error, which is a file, has that line.
private func hasSaid() -> Bool {
  guard let file = fopen("/proc/self/fd/2", "r") else { return false }
  defer { fclose(file) }
  // One byte more, which ends the text.
  var text = [CChar](repeating: 0, count: 4_097)
  fread(&text, 1, 4_096, file)
  return strstr(text, "kept the main queue") != nil
}
