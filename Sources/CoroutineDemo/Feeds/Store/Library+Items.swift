#if Demo
import Foundation
import GRDB

/// An item as it is listed.
struct ListedItem: Equatable, Sendable {
  var title: String
  var feed: String
  var link: String?
  var author: String?
  var published: Date?
}

extension Library {
  /// Calls `body` for each item, newest first, those without a date last; with `words`, only those that have each of
  /// them in their title, summary or author, in any case and with any accents, as the beginning of a word.
  func forEachItem(with words: String?, limit: Int, _ body: (ListedItem) throws -> Void) throws {
    // nil: there is not a word in it.
    let pattern = words.flatMap { FTS5Pattern(matchingAllPrefixesIn: $0) }
    if words != nil && pattern == nil { return }
    let filter = pattern == nil ? "" : "WHERE item.id IN (SELECT rowid FROM item_words WHERE item_words MATCH ?)"
    try database.read { database in
      let rows = try Row.fetchCursor(
        database,
        sql: """
          SELECT item.title, item.link, item.author, item.published, coalesce(nullif(feed.title, ''), feed.name) AS feed
          FROM item JOIN feed ON feed.id = item.feed \(filter)
          ORDER BY item.published IS NULL, item.published DESC, item.id LIMIT ?
          """,
        arguments: pattern.map { [$0, limit] } ?? [limit]
      )
      while let row = try rows.next() {
        try body(
          ListedItem(
            title: row["title"],
            feed: row["feed"],
            link: row["link"],
            author: row["author"],
            published: (row["published"] as Double?).map { Date(timeIntervalSince1970: $0) }
          )
        )
      }
    }
  }

  func itemCount() throws(StoreFailure) -> Int {
    try read { try Int.fetchOne($0, sql: "SELECT count(*) FROM item") ?? 0 }
  }
}
#endif
