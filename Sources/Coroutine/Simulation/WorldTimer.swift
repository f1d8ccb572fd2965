/// A timer of a world that calls a closure, on the world's thread and outside of every coroutine.
private final class WorldTimer: TimerCall, @unchecked Sendable {
  // Sound because it is a constant; a world runs on one thread.
  private let body: () -> Void
  init(_ body: @escaping () -> Void) { self.body = body }
  override func fire() { body() }
}

extension SimulatedWorld {
  /// Calls `body` after `duration` of the world's time, unless the world has ended before.
  ///
  /// Called inside of the world. At the same instant, timers fire in the order of these calls.
  package func after(_ duration: Duration, _ body: @escaping () -> Void) { WorldTimer(body).start(duration) }

  /// Cancels every coroutine that has a binding for which `isMeant` is true.
  package func cancel<Value>(_ local: CoroutineLocal<Value>, where isMeant: (Value) -> Bool) {
    for lane in lanes { lane.cancelAll { isMeant(local.value(from: $0.pointee.locals?.takeUnretainedValue())) } }
  }
}
