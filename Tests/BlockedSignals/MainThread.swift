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

/// Waits for longer than a second, for a coroutine that might need the main queue.
private func waitLong() throws -> Int32 {
  let job = co_launch(name: "slow") { () throws -> Int32 in
    try co_delay(.milliseconds(1_200))
    return 7
  }
  return try job.blockingWait()
}
