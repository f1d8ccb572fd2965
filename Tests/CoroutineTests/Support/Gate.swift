import Coroutine

/// A gate that coroutines wait at, and that anybody opens, once.
typealias Gate = Promise<Void>

extension Promise where Success == Void {
  /// Suspends the coroutine until the gate is open.
  func pass() throws {
    try co_await(self)
  }

  func open() {
    fulfill(())
  }
}

/// Suspends until cancelled: the gate has no other holder that could open it.
func waitForCancellation() throws {
  try Gate().pass()
}
