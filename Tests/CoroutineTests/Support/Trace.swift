/// A list of events in their order; written from any thread.
final class Trace: Sendable {
  private let lines = Locked<[String]>([])

  var all: [String] { lines.current }
  var count: Int { lines.withLock { $0.count } }

  func callAsFunction(_ line: String) {
    lines.withLock { $0.append(line) }
  }
}

/// An object that runs `onRelease` in its deinit.
final class Tracked: Sendable {
  private let onRelease: @Sendable () -> Void

  init(_ onRelease: @escaping @Sendable () -> Void) {
    self.onRelease = onRelease
  }

  /// Writes `released NAME` into `trace` when the last reference is released.
  convenience init(_ name: String, _ trace: Trace) {
    self.init { trace("released \(name)") }
  }

  deinit {
    onRelease()
  }

  /// Keeps the object alive up to the call, whatever the optimiser does.
  @inline(never)
  func use() {}
}
