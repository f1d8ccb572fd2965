#if Demo
import Foundation

/// One entry of a feed, as it is stored.
struct FeedItem: Equatable, Sendable {
  /// What tells whether two items are the same.
  enum Identity: Equatable, Sendable {
    /// An address or another name that no other feed gives to something else: a second feed that has it has the same
    /// item.
    case everywhere(String)
    /// A name that means something only beside those of the same feed: "17", say.
    case inItsFeed(String)
  }

  var identity: Identity
  var title: String
  var link: String?
  var author: String?
  var published: Date?
  /// Plain text, cut where it is long.
  var summary: String

  /// What most readers agree on: the id that the feed gives, else the link, else what the item says.
  init(id: String?, title: String, link: String?, author: String?, published: Date?, summary: String) {
    (self.title, self.link, self.author, self.published, self.summary) = (title, link, author, published, summary)
    if let id, !id.isEmpty {
      identity = id.utf8.contains(UInt8(ascii: ":")) ? .everywhere(id) : .inItsFeed(id)
    } else if let link {
      identity = .everywhere(link)
    } else {
      identity = .inItsFeed(Self.fingerprint(title + "\n" + summary))
    }
  }

  /// FNV-1a, because Swift's own hashes differ from run to run.
  private static func fingerprint(_ text: String) -> String {
    let hash = text.utf8.reduce(0xcbf2_9ce4_8422_2325 as UInt64) { ($0 ^ UInt64($1)) &* 0x100_0000_01b3 }
    return String(hash, radix: 16)
  }
}

/// What a feed brings, in the order of the document.
enum FeedPart: Equatable, Sendable {
  case title(String)
  /// Behind a pointer, which is what is copied on the way from generator to generator.
  indirect case item(FeedItem)
}
#endif
