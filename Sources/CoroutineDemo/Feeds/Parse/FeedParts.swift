#if Demo
import Coroutine
import Foundation

/// Why a document that can be read is no feed of a kind known here.
struct NotAFeed: Error, Equatable {
  /// "a web page", say.
  var what: String
}

/// The parts of a feed, each read when it is asked for: a generator on top of a generator on top of the parser.
///
/// `base` is where the feed came from, for links that are relative.
func feedParts(in document: Generator<XMLPiece, Never, Void>, base: URL? = nil) -> Generator<FeedPart, Never, Void> {
  co_sequence { yield in
    let elements = Elements(document)
    let root = try elements.root()
    let (prefix, name) = root.name.splitPrefix
    switch name {
    case "rss":
      try yield.all(of: rssParts(elements, base: base))
    case "feed":
      let base = root.attributes["xml:base"].flatMap { URL(string: $0, relativeTo: base) } ?? base
      try yield.all(of: atomParts(elements, prefix: prefix, base: base))
    case "RDF": throw NotAFeed(what: "RSS 1.0, and only RSS 2.0 and Atom are read here")
    case "html": throw NotAFeed(what: "a web page; its source may name the feed's address")
    case "opml": throw NotAFeed(what: "a list of feeds (OPML); give the addresses that are in it")
    default: throw NotAFeed(what: "XML of another kind, <\(root.name.prefix(40))>")
    }
    // To the end of the document: what is wrong behind the last item is wrong all the same.
    try elements.finish()
  }
}

extension String {
  /// "atom:" and "entry" of "atom:entry".
  fileprivate var splitPrefix: (prefix: String, name: String) {
    guard let colon = firstIndex(of: ":") else { return ("", self) }
    return (String(self[...colon]), String(self[index(after: colon)...]))
  }

  /// The address that a feed's link means.
  func resolved(against base: URL?) -> String? {
    let link = trimmed
    if link.isEmpty { return nil }
    if link.isAbsoluteAddress { return link }
    return URL(string: link, relativeTo: base)?.absoluteString ?? link
  }

  /// By bytes: Foundation's search would convert all of it first.
  var isAbsoluteAddress: Bool {
    var text = self
    return text.withUTF8 { bytes in
      guard let colon = bytes.firstIndex(of: UInt8(ascii: ":")), colon + 2 < bytes.count else { return false }
      return bytes[colon + 1] == UInt8(ascii: "/") && bytes[colon + 2] == UInt8(ascii: "/")
    }
  }

  var trimmed: String {
    guard let first = utf8.first, let last = utf8.last, first <= 32 || last <= 32 else { return self }
    return trimmingCharacters(in: .whitespacesAndNewlines)
  }
}
#endif
