import Coroutine
import Foundation

/// A feed, as `GET /feeds` and the stream of events show it.
struct FeedStatus: Codable, Equatable, Sendable {
  /// What the reader does, or what became of the feed.
  enum State: String, Codable, Sendable {
    case waiting, reading, read, failed
  }

  var name: String
  var title: String?
  var state = State.waiting
  /// Why it failed.
  var reason: String?
  var bytes = 0
  var expectedBytes: Int?
  var items = 0
  /// The items that no feed has brought before.
  var new = 0
}

/// An item, as `GET /items` shows it.
struct ItemView: Codable, Equatable, Sendable {
  var feed: String
  var title: String
  var link: String?
  var author: String?
  var published: Date?
  var summary: String
}

/// The feeds and items that were read, in memory.
///
/// Readers change it, and handlers look at it, on any worker, so it is behind a lock. Each use is short.
final class Library: Sendable {
  private struct State {
    var feeds: [FeedStatus] = []
    var items: [String: ItemView] = [:]
  }

  private let state = ThreadMutex(State())

  init(_ names: [String]) {
    state.withLock { $0.feeds = names.map { FeedStatus(name: $0) } }
  }

  var feeds: [FeedStatus] { state.withLock { $0.feeds } }

  /// Changes the status of the feed at `index`.
  func update(_ index: Int, _ change: (inout FeedStatus) -> Void) {
    state.withLock { change(&$0.feeds[index]) }
  }

  /// Adds an item; returns whether it is new.
  func add(_ item: FeedItem, from feed: String) -> Bool {
    let key =
      switch item.identity {
      case .everywhere(let name): name
      case .inItsFeed(let name): "\(feed) \(name)"
      }
    let view = ItemView(
      feed: feed,
      title: item.title,
      link: item.link,
      author: item.author,
      published: item.published,
      summary: item.summary
    )
    return state.withLock { $0.items.updateValue(view, forKey: key) == nil }
  }

  /// The newest items whose title or summary contains `text`, in any case; all of them if it is empty.
  func items(matching text: String, limit: Int = 50) -> [ItemView] {
    // A copy, so that the search runs outside the lock.
    let items = state.withLock { Array($0.items.values) }
    let matching =
      text.isEmpty
      ? items
      : items.filter {
        $0.title.range(of: text, options: .caseInsensitive) != nil
          || $0.summary.range(of: text, options: .caseInsensitive) != nil
      }
    let sorted = matching.sorted {
      ($0.published ?? .distantPast, $1.title) > ($1.published ?? .distantPast, $0.title)
    }
    return Array(sorted.prefix(limit))
  }
}
