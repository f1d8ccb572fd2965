/// A timer of a world.
///
/// It calls a closure on the world's thread, outside of every coroutine.
private final class WorldTimer: TimerCall, @unchecked Sendable {
  // Sound because `body` is a constant, and a world runs on one thread.
  private let body: () -> Void
  init(_ body: @escaping () -> Void) { self.body = body }
  override func fire() { body() }
}

extension SimulatedWorld {
  /// Calls `body` after `duration` of the world's time, unless the world has ended before.
  ///
  /// Called inside the world. Timers of one instant fire in the order of these calls.
  package func after(_ duration: Duration, _ body: @escaping () -> Void) {
    WorldTimer(body).start(duration, isLocal: false)
  }

}
