import Coroutine

// Built with --static-swift-stdlib by scripts/consumer: no Foundation, so that the program needs the C library alone.

let insideTask = try co_launch { () throws -> String in
  try co_yield()
  let seen = Said()
  let wait = { try co_yield() }
  // Swift's runtime is part of the program, and keeps its current Task to itself: a wait in there is refused.
  Task.immediate {
    do {
      try wait()
      seen.text = "waited"
    } catch CoroutineError.insideTask {
      seen.text = "insideTask"
    } catch {
      seen.text = "\(error)"
    }
  }
  return seen.text
}.blockingWait()

/// Written and read by one thread.
final class Said: @unchecked Sendable {
  // Sound because the Task's first part runs on the coroutine's stack, before the read.
  var text = ""
}

let fromAsync = try co_launch { try co_await { 42 } }.blockingWait()
print("static: a wait inside a Task gives \(insideTask), async code gives \(fromAsync)")
