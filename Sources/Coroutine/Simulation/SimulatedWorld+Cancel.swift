internal import CCoroutine

// Cancellation in a world: of the coroutines that a binding marks, and of those that catch it for ever.

extension SimulatedWorld {
  /// Cancels every coroutine that has a binding of `local` for which `isMeant` is true.
  package func cancel<Value>(_ local: CoroutineLocal<Value>, where isMeant: (Value) -> Bool) {
    for executor in executors {
      executor.cancelAll { isMeant(local.value(from: $0.pointee.locals?.takeUnretainedValue())) }
    }
  }

  /// Counts the cancellation errors of the current step; called when the running coroutine is about to throw one.
  ///
  /// A coroutine that catches the error each time and waits again would never end its step. After 10,000 errors the run
  /// fails, and the coroutine is parked for ever.
  func throwsCancellation(_ job: JobRef) {
    guard var run = currentRun(of: job) else { return }
    run.cancellations += 1
    step = .running(run)
    guard run.cancellations > 10_000 else { return }
    let carrier = run.candidate.executor.carrier
    fail(policy.leftRunning(dump))
    while true {
      carrier.pointee.grant(0)
      Carrier.switchOut(carrier, job)
    }
  }
}
