#if Demo
import FlyingSocks
import Foundation

/// A feed of 20 MB, made up while it is sent: the same bytes every time, and never all of them in memory.
///
/// Its items are of one length, so the length of the whole is known before the first is made: a template each, with the
/// number written over the place that is left for it.
struct ArchiveFeed: AsyncBufferedSequence, Sendable {
  typealias Element = UInt8

  let count: Int
  private let templates: [Template]
  private static let opening = Array(
    """
    <?xml version="1.0" encoding="UTF-8"?>
    <rss version="2.0" xmlns:content="http://purl.org/rss/1.0/modules/content/" xmlns:dc="http://purl.org/dc/elements/1.1/">
    <channel>
    <title>The Archive</title>
    <link>https://archive.example.org/</link>
    <description>Everything that was ever filed.</description>

    """.utf8
  )
  private static let closing = Array("</channel>\n</rss>\n".utf8)

  /// 20 MB are about 10,000 items.
  init(bytes: Int = 20_000_000) {
    templates = Template.all
    count = Swift.max(1, bytes / templates[0].bytes.count)
  }

  var byteCount: Int { Self.opening.count + count * templates[0].bytes.count + Self.closing.count }

  /// The item at `index`, as it stands in the feed.
  fileprivate func write(_ index: Int, to bytes: inout [UInt8]) {
    let template = templates[index % templates.count]
    let start = bytes.count
    bytes += template.bytes
    for place in template.places {
      var rest = index + 1
      for digit in (0..<Template.digits).reversed() {
        bytes[start + place + digit] = UInt8(ascii: "0") + UInt8(rest % 10)
        rest /= 10
      }
    }
  }

  func makeAsyncIterator() -> Iterator { Iterator(feed: self) }

  struct Iterator: AsyncBufferedIteratorProtocol {
    fileprivate let feed: ArchiveFeed
    /// -1: the opening is still to come; one more than the last item's: all has been given.
    fileprivate var index = -1

    mutating func next() async throws -> UInt8? { preconditionFailure("it is sent in pieces") }

    mutating func nextBuffer(suggested count: Int) async throws -> [UInt8]? { nextPiece(atLeast: count) }

    mutating func nextPiece(atLeast count: Int) -> [UInt8]? {
      guard index <= feed.count else { return nil }
      var bytes: [UInt8] = []
      bytes.reserveCapacity(count + 4_096)
      while bytes.count < count, index <= feed.count {
        switch index {
        case -1: bytes += ArchiveFeed.opening
        case feed.count: bytes += ArchiveFeed.closing
        default: feed.write(index, to: &bytes)
        }
        index += 1
      }
      return bytes
    }
  }
}

/// An item whose number is still to be written in.
private struct Template: Sendable {
  static let digits = 6
  private static let mark = "######"
  private static let length = 2_000

  let bytes: [UInt8]
  /// Where the number goes.
  let places: [Int]

  static let all = [
    (
      "Minutes of meeting", "registrar",
      "The council met &amp; agreed on everything that had been prepared; <b>nobody</b> objected. "
    ),
    (
      "Letter", "postmaster",
      "Dear all, the river is high again, and the ferry does not run. Yours &#8212; the ferryman. "
    ),
    ("Inventory of shelf", "librarian", "Maps: 12; globes: 3; a box of “unsorted” plates, among them one of Zürich. "),
    ("Observation", "astronomer", "Clear sky until 02:40, then haze. M31 &lt; 5&#176; above the roofs; seeing fair. "),
  ].map(Template.init)

  private init(title: String, author: String, sentence: String) {
    let head = """
      <item>
      <title>\(title) no. \(Self.mark)</title>
      <link>https://archive.example.org/items/\(Self.mark)</link>
      <guid isPermaLink="false">tag:archive.example.org,2026:\(Self.mark)</guid>
      <pubDate>Thu, 05 Feb 2026 12:00:00 +0100</pubDate>
      <dc:creator>The \(author)</dc:creator>
      <category>files</category>
      <description>\(sentence.replacing("<b>", with: "&lt;b&gt;").replacing("</b>", with: "&lt;/b&gt;"))</description>
      <content:encoded><![CDATA[<p>
      """
    let tail = "</p>]]></content:encoded>\n</item>\n"
    var body = ""
    while head.utf8.count + body.utf8.count + sentence.utf8.count + tail.utf8.count <= Self.length { body += sentence }
    let rest = Self.length - head.utf8.count - body.utf8.count - tail.utf8.count
    let bytes = Array((head + body + String(repeating: ".", count: rest) + tail).utf8)
    let mark = Array(Self.mark.utf8)
    self.bytes = bytes
    places = bytes.indices.filter { bytes[$0...].starts(with: mark) }
  }
}
#endif
