// Promises and time. The timers are those of the schedulers, so no thread and no coroutine waits.

extension Promise where Success == Void {
  /// A promise that is fulfilled after `duration`, never early.
  ///
  /// Cancelling it calls the timer off.
  public static func after(_ duration: Duration, file: StaticString = #fileID, line: UInt = #line) -> Promise {
    let promise = Promise(file: file, line: line)
    let timer = PromiseTimer { _ = promise.fulfill(()) }
    let stopper = PromiseTimer.Stopper(timer)
    promise.onCancel = { withExtendedLifetime(stopper) {} }
    timer.startUnlessStopped(duration)
    return promise
  }
}

/// A timer for a promise; settling the promise calls it off.
///
/// The closure is released when the timer has gone off or been called off. Settling releases `onCancel`, which holds
/// the one reference to the stopper, whose deinit calls off: so there is no other hook for the end of a promise.
private final class PromiseTimer: TimerCall, @unchecked Sendable {
  // Sound because the closure is under the lock.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var body: (() -> Void)?

  init(_ body: @escaping () -> Void) {
    self.body = body
    super.init()
  }

  override func fire() { lock.withLock { body.take() }?() }

  /// Unless it has been called off.
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
  /// The value, `duration` after it is there; a failure passes by at once.
  public final func delay(_ duration: Duration, file: StaticString = #fileID, line: UInt = #line) -> Promise {
    then(file: file, line: line) { value throws -> Promise in
      Promise<Void>.after(duration, file: file, line: line).then(file: file, line: line) { () throws -> Success in value
      }
    }
  }

  /// The same outcome, or, if there is none after `duration`, ``TimeoutError``.
  ///
  /// Then the work is cancelled, unless others wait for it. A timeout is a failure, no cancellation. Zero or less: at once.
  public final func timeout(_ duration: Duration, file: StaticString = #fileID, line: UInt = #line) -> Promise {
    let timed = Promise(file: file, line: line)
    // Weak: an abandoned promise must not be kept until its deadline.
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
