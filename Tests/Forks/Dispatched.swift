import CTestSupport
import Coroutine
import Dispatch
import Glibc

/// Makes Dispatch start threads, one of which waits for timers.
func useDispatch() {
  let done = DispatchSemaphore(value: 0)
  let timer = DispatchSource.makeTimerSource(queue: DispatchQueue(label: "parent"))
  timer.setEventHandler { done.signal() }
  timer.schedule(deadline: .now() + .milliseconds(1))
  timer.activate()
  done.wait()
  timer.cancel()
}

private func refuses(_ body: () throws -> Void) -> Bool {
  do {
    try body()
  } catch CoroutineError.afterFork {
    return true
  } catch {}
  return false
}

/// A child of a process that had used Dispatch, and no coroutines.
let childOfDispatch = Step("a child of a process that had used Dispatch") {
  let queue = DispatchQueue(label: "child")
  guard refuses({ try co_launch(on: queue) {}.blockingWait() }),
    refuses({ try co_launch(on: .main) {}.blockingWait() }),
    refuses({ try co_launch(on: queue, start: .immediate) {}.blockingWait() }),
    refuses({ try Promise<Void>.running(on: queue) {}.blockingWait() }),
    refuses({ try Promise<Void>.task {}.blockingWait() })
  else { return false }
  return try co_launch {
    try co_delay(.milliseconds(1))
    guard refuses({ try co_switch(to: queue) }), refuses({ try co_launch(on: queue) {}.join() }) else { return false }
    return try co_blocking { true } && co_scope { try $0.launch { true }.join() }
  }
  .blockingWait()
}
