import Synchronization

/// A flag that any thread raises and any code reads without waiting.
final class Flag: Sendable {
  private let state = Atomic(false)

  var isRaised: Bool { state.load(ordering: .acquiring) }

  func raise() {
    state.store(true, ordering: .releasing)
  }
}
