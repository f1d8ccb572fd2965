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
  // Of every kind of queue that the library has.
  DispatchQueue(label: "parent, soon", qos: .userInitiated).async { done.signal() }
  done.wait()
}

/// A child of a process that had used Dispatch, and no coroutines.
let childOfDispatch = Step("a child of a process that had used Dispatch") {
  let queue = DispatchQueue(label: "child")
  // In children that have not used the runtime either.
  guard ends({ try co_launch(on: queue) {}.blockingWait() }),
    ends({ try co_launch(on: .main) {}.blockingWait() }),
    ends({ try co_launch(on: queue, start: .immediate) {}.blockingWait() }),
    ends({ try Promise<Void>.running(on: queue) {}.blockingWait() }),
    ends({ try Promise<Void>.task {}.blockingWait() }),
    ends({ try co_launch { try co_switch(to: queue) }.blockingWait() }),
    ends({ try co_launch { try co_launch(on: queue) {}.join() }.blockingWait() })
  else { return false }
  return try co_launch {
    try co_delay(.milliseconds(1))
    return try co_blocking { true } && co_scope { try $0.launch { true }.join() }
  }
  .blockingWait() && writesDumpAtSignal()
}

/// Whether SIGUSR2 writes a dump, which needs no queue.
private func writesDumpAtSignal() -> Bool {
  var ends: [Int32] = [-1, -1]
  guard pipe(&ends) == 0 else { return false }
  let standardError = dup(STDERR_FILENO)
  dup2(ends[1], STDERR_FILENO)
  CoroutineRuntime.dumpOnSignal()
  kill(getpid(), SIGUSR2)
  var line: [UInt8] = []
  var byte: UInt8 = 0
  while read(ends[0], &byte, 1) == 1, byte != UInt8(ascii: "\n") { line.append(byte) }
  dup2(standardError, STDERR_FILENO)
  return String(decoding: line, as: UTF8.self).contains("live coroutine")
}
