#if Demo
import Coroutine
import Foundation

/// The parts of an Atom feed, read from behind `<feed>`; `prefix` is what its elements' names begin with ("atom:"), if
/// anything.
func atomParts(_ elements: Elements, prefix: String, base: URL?) -> Generator<FeedPart, Never, Void> {
  co_sequence { yield in
    try elements.children { name, _ in
      switch name.dropping(prefix) {
      case "title": try yield(.title(PlainText.of(try elements.text())))
      case "entry": try yield(.item(try atomEntry(elements, prefix: prefix, base: base)))
      default: try elements.skip()
      }
    }
  }
}

/// From behind `<entry>` to its end.
private func atomEntry(_ elements: Elements, prefix: String, base: URL?) throws -> FeedItem {
  var id: String?
  var title: String?
  var author: String?
  var published: String?
  var updated: String?
  var summary: String?
  var content: String?
  var link: (address: String, isAlternate: Bool)?
  try elements.children { name, attributes in
    switch name.dropping(prefix) {
    case "id": id = try elements.text().trimmed
    case "title": title = PlainText.of(try elements.text())
    case "author":
      try elements.children { name, _ in
        if name.dropping(prefix) == "name" { author = PlainText.of(try elements.text()) } else { try elements.skip() }
      }
    case "published": published = try elements.text()
    case "updated": updated = try elements.text()
    case "summary": summary = PlainText.of(try elements.text())
    case "content": content = PlainText.of(try elements.text())
    case "link":
      // An entry has links of many kinds; the one without a kind, or of the kind "alternate", is the page itself.
      let isAlternate = attributes["rel", default: "alternate"] == "alternate"
      if let address = attributes["href"], link == nil || isAlternate && link?.isAlternate == false {
        link = (address, isAlternate)
      }
      try elements.skip()
    default: try elements.skip()
    }
  }
  let text = summary ?? content ?? ""
  return FeedItem(
    id: id,
    title: title.flatMap { $0.isEmpty ? nil : $0 } ?? PlainText.heading(of: text),
    link: link?.address.resolved(against: base),
    author: author,
    published: (published ?? updated).flatMap { FeedDate.parse($0) },
    summary: text
  )
}

extension String {
  fileprivate func dropping(_ prefix: String) -> String {
    prefix.isEmpty || !hasPrefix(prefix) ? self : String(dropFirst(prefix.count))
  }
}
#endif
