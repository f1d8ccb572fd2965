import Coroutine
import Dispatch
import Glibc
import Synchronization

/// A loop of its own thread, as another library may have one.
final class Loop: CoroutineHost {
  private struct State {
    var work: [@Sendable () -> Void] = []
    var timer: (drain: HostedDrain, deadline: DispatchTime)?
    var isOver = false
  }

  private let state = Locked(State())
  private let wakeUp = DispatchSemaphore(value: 0)
  private let thread = Atomic<UInt>(0)
  let submitted = Atomic<Int>(0)
  /// The drains that lasted for about a time slice, or longer.
  let long = Atomic<Int>(0)
  let ended: Gate
  /// Calls each drain.
  private let around: @Sendable (() -> Void) -> Void

  init(_ ended: Gate = Gate(), around: @escaping @Sendable (() -> Void) -> Void = { $0() }) {
    self.ended = ended
    self.around = around
    startThread { [weak self] in
      while let wakeUp = self?.turn() { wakeUp() }
      ended.open()
    }
  }

  /// Runs what is there, and returns the wait for more; nil when the loop is over.
  private func turn() -> (() -> Void)? {
    thread.store(pthread_self(), ordering: .relaxed)
    let (work, due, isOver) = state.withLock { state in
      let work = state.work
      state.work = []
      var due: HostedDrain?
      if let timer = state.timer, timer.deadline <= .now() { (due, state.timer) = (timer.drain, nil) }
      return (work, due, state.isOver)
    }
    for body in work { body() }
    due?.timerFired()
    if isOver { return nil }
    if !work.isEmpty || due != nil { return {} }
    let deadline = state.withLock { $0.timer?.deadline }
    return { [wakeUp] in _ = wakeUp.wait(timeout: deadline ?? .distantFuture) }
  }

  func execute(_ body: @escaping @Sendable () -> Void) {
    state.withLock { $0.work.append(body) }
    wakeUp.signal()
  }

  func end() {
    state.withLock { $0.isOver = true }
    wakeUp.signal()
  }

  deinit { end() }

  var coroutineLabel: String { "loop" }
  var isCurrentForCoroutines: Bool { thread.load(ordering: .relaxed) == pthread_self() }
  func submit(_ drain: HostedDrain) {
    submitted.wrappingAdd(1, ordering: .relaxed)
    execute { [self] in
      let start = DispatchTime.now()
      around { drain() }
      if DispatchTime.now() >= start + .microseconds(200) { long.wrappingAdd(1, ordering: .relaxed) }
    }
  }
  func schedule(_ drain: HostedDrain, after delay: Duration) {
    let nanoseconds = Int(delay / .nanoseconds(1))
    state.withLock { $0.timer = (drain, .now() + .nanoseconds(nanoseconds)) }
  }
  func unschedule() { state.withLock { $0.timer = nil } }
}

/// An actor on the thread of a host.
actor HostedLedger {
  var balance = 0
  private let executor: CoroutineExecutor
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }

  init(_ host: HostedScheduler) { executor = CoroutineExecutor(host) }
}
