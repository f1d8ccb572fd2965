#if Demo
import Coroutine

/// The store as coroutines see it. FairMutex for now.
final class Store: Sendable {
  private let library: Library
  private let mutex = FairMutex()

  init(path: String) throws {
    library = try Library(path: path)
  }

  private func run<Output: Sendable>(_ body: @escaping @Sendable (Library) throws -> Output) throws -> Output {
    try mutex.withLock { try co_blocking { try body(self.library) } }
  }

  func feed(named name: String) throws -> StoredFeed { try run { try $0.feed(named: name) } }
  func add(_ items: [FeedItem], to feed: StoredFeed) throws -> Int { try run { try $0.add(items, to: feed) } }
  func complete(_ feed: StoredFeed, title: String, _ validators: Validators) throws {
    try run { try $0.complete(feed, title: title, validators) }
  }
}
#endif
