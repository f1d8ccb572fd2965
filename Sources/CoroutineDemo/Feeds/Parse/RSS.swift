#if Demo
import Coroutine
import Foundation

/// The parts of an RSS 2.0 feed, read from behind `<rss>`.
func rssParts(_ elements: Elements, base: URL?) -> Generator<FeedPart, Never, Void> {
  co_sequence { yield in
    try elements.children { name, _ in
      guard name == "channel" else { return try elements.skip() }
      try elements.children { name, _ in
        switch name {
        case "title": try yield(.title(PlainText.of(try elements.text())))
        case "item": try yield(.item(try rssItem(elements, base: base)))
        default: try elements.skip()
        }
      }
    }
  }
}

/// From behind `<item>` to its end.
///
/// Nothing in it is obligatory, and of what comes twice the first counts.
private func rssItem(_ elements: Elements, base: URL?) throws -> FeedItem {
  var title: String?
  var link: String?
  var guid: String?
  var author: String?
  var date: String?
  var description: String?
  var content: String?
  var guidIsLink = true

  func keep(_ field: inout String?) throws {
    let text = try elements.text()
    if field == nil { field = text }
  }

  try elements.children { name, attributes in
    switch name {
    case "title": try keep(&title)
    case "link": try keep(&link)
    case "guid":
      guidIsLink = attributes["isPermaLink"] != "false"
      try keep(&guid)
    case "author", "dc:creator": try keep(&author)
    case "pubDate", "dc:date": try keep(&date)
    case "description": try keep(&description)
    // The full text is for items without a description: most feeds that have it have both.
    case "content:encoded": if description == nil { try keep(&content) } else { try elements.skip() }
    default: try elements.skip()
    }
  }
  let id = guid?.trimmed
  let address = link?.resolved(against: base) ?? (guidIsLink ? id.flatMap { $0.isAbsoluteAddress ? $0 : nil } : nil)
  let summary = PlainText.of(description ?? content ?? "")
  return FeedItem(
    id: id,
    title: title.map { PlainText.of($0) } ?? PlainText.heading(of: summary),
    link: address,
    author: author.map { PlainText.of($0) },
    published: date.flatMap { FeedDate.parse($0) },
    summary: summary
  )
}
#endif
