/// A work item made from a closure; it may keep a scheduler pinned.
final class ClosureWork: Sendable {
  // Sound because the item is accessed only by the queue that holds it.
  @exclusivity(unchecked) private nonisolated(unsafe) var storage = WorkItem { item in
    let work: Unmanaged<ClosureWork> = object(holding: UnsafeRawPointer(item), at: 0)
    work.takeRetainedValue().run()
  }
  private let body: @Sendable () -> Void
  private let pinned: Scheduler?

  private init(_ body: @escaping @Sendable () -> Void, _ pinned: Scheduler?) {
    self.body = body
    self.pinned = pinned
    checkAddress(item, of: &storage)
  }

  private var item: UnsafeMutablePointer<WorkItem> { propertyAddress(in: self, at: 0, as: WorkItem.self) }

  /// Returns an item that owns its object.
  static func retained(_ body: @escaping @Sendable () -> Void, _ pinned: Scheduler?) -> UnsafeMutablePointer<WorkItem> {
    let work = ClosureWork(body, pinned)
    _ = Unmanaged.passRetained(work)
    return work.item
  }

  private func run() {
    body()
    pinned?.unpin()
  }
}
