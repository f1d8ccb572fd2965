import Coroutine
import Dispatch
import Glibc

// A process that has no free descriptor before it uses the runtime for the first time. So the first timer that it sets
// cannot have the kernel's timer that Dispatch wants. FirstTimerTests starts it: a process of the test library has set
// timers of its own. The status is the number of the step that failed, or 0.

/// Limits new descriptors to numbers below `limit`; returns the previous limit.
func allowDescriptors(below limit: rlim_t) -> rlim_t {
  var limits = rlimit()
  getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limits)
  let before = limits.rlim_cur
  limits.rlim_cur = limit
  setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limits)
  return before
}

/// Waits for a delay and for a deadline, each the first of its queue; returns the status.
func waitForTimers() throws -> Int32 {
  // A worker's, and a queue's.
  for (step, queue) in [nil, DispatchQueue(label: "without descriptors")].enumerated() {
    let hasEnded = try co_launch(on: queue) { () -> Bool in
      try co_delay(.milliseconds(1))
      do {
        try co_timeout(.milliseconds(1)) { try co_delay(.seconds(3600)) }
      } catch is TimeoutError {
        return true
      }
      return false
    }
    .blockingWait()
    if !hasEnded { return Int32(step) + 10 }
  }
  return 0
}

/// Makes Dispatch open the two descriptors that it needs for anything that it waits for.
///
/// Without them it would end the process (Sources/Coroutine/Host/QueueHost.swift).
func startDispatch() -> any DispatchSourceRead {
  var ends: [Int32] = [-1, -1]
  if pipe(&ends) != 0 { exit(3) }
  let isRegistered = DispatchSemaphore(value: 0)
  let source = DispatchSource.makeReadSource(fileDescriptor: ends[0])
  source.setRegistrationHandler { isRegistered.signal() }
  source.activate()
  isRegistered.wait()
  return source
}

let source = startDispatch()
let before = allowDescriptors(below: 3)
if dup(0) >= 0 { exit(1) }
let status = try waitForTimers()
if dup(0) >= 0 { exit(2) }
// LeakSanitizer reads a file at the exit.
_ = allowDescriptors(below: before)
withExtendedLifetime(source) {}
exit(status)
