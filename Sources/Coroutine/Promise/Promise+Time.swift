// Promises and time. They use the timers of the schedulers, so no thread and no coroutine waits.

extension Promise where Success == Void {
  /// Returns a promise that is fulfilled after `duration`, never early.
  ///
  /// Cancelling the promise cancels the timer.
  public static func after(_ duration: Duration, file: StaticString = #fileID, line: UInt = #line) -> Promise {
    let promise = Promise(file: file, line: line)
    let timer = PromiseTimer { _ = promise.fulfill(()) }
    let stopper = PromiseTimer.Stopper(timer)
    promise.onCancel = { withExtendedLifetime(stopper) {} }
    timer.startUnlessStopped(duration)
    return promise
  }
}

/// A timer for a promise; settling the promise cancels it.
///
/// The closure is released when the timer has fired or was cancelled. Settling releases `onCancel`, which holds the
/// only reference to the stopper, whose deinit cancels the timer. So the end of a promise needs no other hook.
private final class PromiseTimer: TimerCall, @unchecked Sendable {
  // Sound because the closure is under the lock.
  // Not shared: what fires and what stops settles the promise, which tells.
  private let lock = ThreadLock()
  @exclusivity(unchecked) private var body: (() -> Void)?

  init(_ body: @escaping () -> Void) {
    self.body = body
    super.init()
  }

  override func fire() { lock.withLock { body.take() }?() }

  /// Starts the timer, unless it has been cancelled.
  func startUnlessStopped(_ duration: Duration) { lock.withLock { if body != nil { start(duration) } } }

  func cancel() {
    _ = lock.withLock {
      stop()
      return body.take()
    }
  }

  final class Stopper: Sendable {
    private let timer: PromiseTimer
    init(_ timer: PromiseTimer) { self.timer = timer }
    deinit { timer.cancel() }
  }
}

extension Promise {
  /// Returns a promise for the value, fulfilled `duration` after this one; a failure is passed on at once.
  public final func delay(_ duration: Duration, file: StaticString = #fileID, line: UInt = #line) -> Promise {
    then(file: file, line: line) { value throws -> Promise in
      Promise<Void>.after(duration, file: file, line: line).then(file: file, line: line) { () throws -> Success in value
      }
    }
  }

  /// Returns a promise with the same outcome, or ``TimeoutError`` if there is no outcome after `duration`.
  ///
  /// The work is then cancelled, unless it has other waiters. A timeout is a failure, not a cancellation. If `duration`
  /// is zero or less, it rejects at once.
  public final func timeout(_ duration: Duration, file: StaticString = #fileID, line: UInt = #line) -> Promise {
    let timed = Promise(file: file, line: line)
    // Weak: the timer must not keep an abandoned promise until its deadline.
    let timer = PromiseTimer { [weak timed] in _ = timed?.cancel(with: TimeoutError(after: duration)) }
    let stopper = PromiseTimer.Stopper(timer)
    timed.onCancel = { withExtendedLifetime(stopper) {} }
    timed.link(to: self, on: nil, [], Self.copier)
    if duration > .zero {
      timer.startUnlessStopped(duration)
    } else {
      _ = timed.cancel(with: TimeoutError(after: duration))
    }
    return timed
  }
}
