import Coroutine
import CoroutineHTTP
import Foundation
import HTTPTypes

/// Reads all feeds at once, each in a coroutine, and tells of each step.
struct Reader: Sendable {
  let library: Library
  let news: News
  let client: HTTPClient
  /// How long one feed may take.
  var timeout = Duration.seconds(60)

  /// Suspends until every feed was read or has failed.
  func readAll(from site: String) throws {
    try co_scope { scope in
      for (index, feed) in library.feeds.enumerated() {
        tell(index) { $0 = FeedStatus(name: feed.name, title: feed.title) }
        scope.launch(name: "reading \(feed.name)") { try read(index, feed.name, site) }
      }
    }
  }

  private func read(_ index: Int, _ name: String, _ site: String) throws {
    tell(index) { $0.state = .reading }
    do {
      try co_timeout(timeout) {
        let download = try Download("\(site)/source/\(name)", by: client) { count in tell(index) { $0.bytes += count } }
        try parse(download, index, name)
      }
      tell(index) { $0.state = .read }
    } catch {
      tell(index) {
        $0.state = .failed
        $0.reason = "\(error)"
      }
      // A feed's failure is its own; a cancellation ends the reading.
      if co_isCancelled { throw error }
    }
  }

  /// The generators that the command-line demo reads with: each part is parsed when it is asked for, from bytes that
  /// are read when the parser asks for them.
  private func parse(_ download: Download, _ index: Int, _ name: String) throws {
    let length = download.head.headerFields[.contentLength].flatMap { Int($0) }
    tell(index) { $0.expectedBytes = length }
    let type = download.head.headerFields[.contentType]
    let charset = type?.components(separatedBy: "charset=").dropFirst().first
    let pieces = xmlPieces(
      of: Prolog(download, charset: charset),
      blanks: false,
      entity: HTMLEntities.character
    )
    let parts = feedParts(in: pieces, base: URL(string: "http://feeds.example/\(name)"))
    while case .yielded(let part) = try parts.step() {
      switch part {
      case .title(let title): tell(index) { $0.title = title }
      case .item(let item):
        let isNew = library.add(item, from: name)
        tell(index) {
          $0.items += 1
          if isNew { $0.new += 1 }
        }
      }
      try co_yield()
    }
  }

  private func tell(_ index: Int, _ change: (inout FeedStatus) -> Void) {
    library.update(index, change)
    news.publish()
  }
}
