import Coroutine

/// A gate that coroutines wait at, and that any code opens, once.
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

/// Suspends until cancelled: no other code has the gate, so it is never opened.
func waitForCancellation() throws {
  try Gate().pass()
}
