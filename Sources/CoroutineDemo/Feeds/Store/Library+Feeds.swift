#if Demo
import Foundation
import GRDB

/// A feed as the database knows it.
struct StoredFeed: Equatable, Sendable {
  var id: Int64
  var name: String
  /// Empty until it has been read once.
  var title: String
  /// Those of the version that was read to its end last; none where there was no such version.
  var validators: Validators
}

extension Library {
  /// The feed of that name, entered now where it is new.
  func feed(named name: String) throws(StoreFailure) -> StoredFeed {
    try write { database in
      try database.execute(sql: "INSERT INTO feed(name) VALUES (?) ON CONFLICT DO NOTHING", arguments: [name])
      let row = try Row.fetchOne(database, sql: "SELECT * FROM feed WHERE name = ?", arguments: [name])
      guard let row else { throw StoreFailure(path: path, kind: .other("the feed \(name) is gone")) }
      let validators = Validators(etag: row["etag"], modified: row["modified"])
      return StoredFeed(id: row["id"], name: name, title: row["title"], validators: validators)
    }
  }

  /// Stores those of `items` that are not there yet, all or, where it fails, none; returns how many were new.
  func add(_ items: [FeedItem], to feed: StoredFeed) throws(StoreFailure) -> Int {
    try write { database in
      let insertion = try database.cachedStatement(
        sql: """
          INSERT INTO item(feed, identity, title, link, author, published, summary) VALUES (?, ?, ?, ?, ?, ?, ?)
          ON CONFLICT DO NOTHING
          """
      )
      var count = 0
      for item in items {
        let identity =
          switch item.identity {
          case .everywhere(let name): name
          case .inItsFeed(let name): "\(feed.name)#\(name)"
          }
        try insertion.execute(
          arguments: [
            feed.id, identity, item.title, item.link, item.author, item.published?.timeIntervalSince1970, item.summary,
          ]
        )
        count += database.changesCount
      }
      return count
    }
  }

  /// Notes what the feed is called and, where it has been read to its end, which version that was.
  ///
  /// Not before: a site that is asked with the validators of a version that was read by half says "not modified", and
  /// the other half never comes.
  func close(_ feed: StoredFeed, title: String, _ validators: Validators?) throws(StoreFailure) {
    let title = title.isEmpty ? feed.title : title
    let validators = validators ?? feed.validators
    try write { database in
      try database.execute(
        sql: "UPDATE feed SET title = ?, etag = ?, modified = ? WHERE id = ?",
        arguments: [title, validators.etag, validators.modified, feed.id]
      )
    }
  }
}
#endif
