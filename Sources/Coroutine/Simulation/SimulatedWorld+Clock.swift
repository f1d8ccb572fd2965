import Synchronization

// The clock of a world. It moves to the next timer when nothing can run.

extension SimulatedWorld {
  /// What the clock of the timers shows when a world begins.
  package static var start: UInt64 { 1_000_000_000 }

  /// Nanoseconds since the beginning of the world.
  package var elapsed: UInt64 { now - Self.start }
  /// Nanoseconds on the clock of the timers, which shows `start` when the world begins.
  package var now: UInt64 { time.load(ordering: .relaxed) }

  var nextTimer: UInt64? {
    var next = UInt64.max
    for executor in executors { next = min(next, executor.scheduler.nextTimer.load(ordering: .relaxed)) }
    return next == .max ? nil : next
  }

  /// Moves the clock to the next timers and fires them; returns false if there are no timers.
  func passTime() -> Bool {
    guard let next = nextTimer else { return false }
    let now = max(now, next)
    time.store(now, ordering: .relaxed)
    step = .idle(previous: nil)
    for executor in executors where executor.scheduler.nextTimer.load(ordering: .relaxed) <= now {
      mount(executor)
      executor.carrier.pointee.job = nil
      executor.carrier.pointee.now = now
      executor.scheduler.fireTimers(now)
    }
    return true
  }

  /// Suspends the running coroutine until no other one can run without time passing.
  ///
  /// Throws the cancellation error, and `notInCoroutine` outside a coroutine.
  package func settle() throws {
    let (carrier, job) = try Carrier.beginWaiting()
    var waiter = Waiter(job: job)
    try withUnsafeMutablePointer(to: &waiter) { waiter in
      settlingLock.lock()
      _ = try WaitQueue.park(carrier, job, .callback) { epoch in
        settling.append(waiter, epoch)
        settlingLock.unlock()
      } withdraw: {
        settlingLock.withLock { settling.remove(waiter) }
      }
    }
  }

  /// Wakes the coroutine that has waited longest in `settle`; returns false if there is none.
  func wakeSettled() -> Bool {
    settlingLock.lock()
    let waiter = settling.claimFirst()
    settlingLock.unlock()
    guard let waiter else { return false }
    waiter.wake()
    return true
  }

  /// Calls `body` after `duration` of the world's time, unless the world has ended before.
  ///
  /// Called inside the world. Timers of one instant fire in the order of these calls.
  package func after(_ duration: Duration, _ body: @escaping () -> Void) {
    WorldTimer(body).start(duration, isLocal: false)
  }
}

/// A timer of a world.
///
/// It calls a closure on the world's thread, outside of every coroutine.
private final class WorldTimer: TimerCall, @unchecked Sendable {
  // Sound because `body` is a constant, and a world runs on one thread.
  private let body: () -> Void
  init(_ body: @escaping () -> Void) { self.body = body }
  override func fire() { body() }
}
