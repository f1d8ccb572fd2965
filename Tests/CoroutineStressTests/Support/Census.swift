import Synchronization

/// Counts live objects and events, from any thread.
final class Census: Sendable {
  private let count = Atomic(0)

  var now: Int { count.load(ordering: .acquiring) }

  /// Returns the count after the change.
  @discardableResult
  func change(by difference: Int = 1) -> Int {
    count.wrappingAdd(difference, ordering: .acquiringAndReleasing).newValue
  }

  /// Returns an object that is counted while it lives.
  func citizen() -> Citizen { Citizen(of: self) }

  final class Citizen: Sendable {
    private let census: Census

    fileprivate init(of census: Census) {
      self.census = census
      census.change()
    }

    deinit { census.change(by: -1) }

    /// Keeps the object alive up to the call.
    @inline(never)
    func use() {}
  }
}
