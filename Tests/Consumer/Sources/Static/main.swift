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

// Names of functions come from the program's own table of symbols, where Swift's runtime has its names as well.
let promise = Promise<Int>()
@inline(never) func waitHere() throws -> Int { try co_await(promise) + 1 }
let parked = co_launch(name: "parked") { try waitHere() }
var stack: [UInt] = []
while stack.isEmpty {
  stack =
    CoroutineRuntime.snapshot(stacks: true).coroutines.first { $0.name == "parked" && $0.state == .waiting }?.stack
    ?? []
}
let names = CoroutineRuntime.frames(at: stack).compactMap(\.symbol)
print("static: a coroutine waits in \(names.first { $0.contains("waitHere") } ?? "\(names)")")
promise.fulfill(1)
_ = try parked.blockingWait()
