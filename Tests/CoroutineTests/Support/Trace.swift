/// What happened, in the order in which it happened; written to from any thread.
final class Trace: Sendable {
  private let lines = Locked<[String]>([])

  var all: [String] { lines.current }
  var count: Int { lines.withLock { $0.count } }

  func callAsFunction(_ line: String) {
    lines.withLock { $0.append(line) }
  }
}

/// An object whose end is seen: `onRelease` runs in its deinit.
final class Tracked: Sendable {
  private let onRelease: @Sendable () -> Void

  init(_ onRelease: @escaping @Sendable () -> Void) {
    self.onRelease = onRelease
  }

  /// Writes `released NAME` into `trace` when the last reference goes.
  convenience init(_ name: String, _ trace: Trace) {
    self.init { trace("released \(name)") }
  }

  deinit {
    onRelease()
  }

  /// Keeps the object alive up to the call, whatever the optimiser would rather do.
  @inline(never)
  func use() {}
}
