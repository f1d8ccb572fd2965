#if Demo
import Coroutine
import Foundation
import Testing

@testable import CoroutineDemo

@Suite(.timeLimit(.minutes(10))) struct `The parts of a feed` {
  struct Read {
    var title = ""
    var items: [FeedItem] = []
    var failure: (any Error)?
  }

  static func read(_ bytes: some Sequence<UInt8>, charset: String? = nil, piece: Int = .max) -> Read {
    let source = Prolog(BytesInMemory(bytes, piece: piece), charset: charset)
    let parts = feedParts(
      in: xmlPieces(of: source, blanks: false, entity: HTMLEntities.character),
      base: URL(string: "https://example.org/feed.xml")
    )
    var read = Read()
    for part in parts {
      switch part {
      case .title(let title): read.title = title
      case .item(let item): read.items.append(item)
      }
    }
    read.failure = parts.failure
    return read
  }

  static func rss(_ items: String) -> Read { read("<rss version='2.0'><channel>\(items)</channel></rss>".utf8) }

  @Test(arguments: [
    ("planet.xml", "Planet Mend", 6, "Ferry timetable for the spring"),
    ("releases.atom", "Harbour: releases", 3, "Harbour 4.1.0"),
    ("zeitung.xml", "Uferbote - Nachrichten vom Fluß", 3, "Straßenbahn fährt wieder über die Brücke"),
    ("courrier.xml", "Le Courrier du Canal", 3, "Péniche à vendre : 12 000 €"),
    ("shimbun.xml", "港町新聞", 2, "春の渡し船、運航再開"),
    ("notes.atom", "Νέα από το νησί", 2, "Το φεράρι της άνοιξης"),
    ("podcast.xml", "Talking Tides", 4, "12: The moon is late"),
    ("weather.xml", "Weather at the harbour", 2, "Saturday evening: 8°C, wind from the west"),
  ])
  func `of each that is shipped are what is written there`(file: String, title: String, count: Int, first: String)
    throws
  {
    let sample = try Catalogue.sample(file)
    // The result is the same for every cut, also inside characters, tags and entities.
    for piece in [Int.max, 1_000, 7, 1] {
      let read = Self.read(sample, piece: piece)
      #expect(read.failure == nil)
      #expect(read.title == title)
      #expect(read.items.count == count)
      #expect(read.items.first?.title == first)
    }
  }

  @Test func `an encoding may be named by the answer alone, and blank lines may come first`() throws {
    let read = Self.read(try Catalogue.sample("gazeta.xml"), charset: "koi8-r")
    #expect(read.failure == nil)
    #expect(read.title == "Речной вестник")
    #expect(read.items.map(\.title) == ["Паром снова ходит", "Маяк открыт по воскресеньям"])
  }

  @Test func `an Atom entry has its own link, its first date, and text without markup`() throws {
    let items = Self.read(try Catalogue.sample("releases.atom")).items
    #expect(items[0].link == "https://forge.example.org/harbour/releases/4.1.0")
    #expect(items[0].author == "Noor Haddad")
    #expect(items[0].summary == "What is new Moorings may be nested . Tides are read from a file — at last.")
    #expect(items[1].title == "Harbour 4.0.3 (security)")
    #expect(items[1].published == Date(timeIntervalSince1970: 1_771_632_000))
    #expect(items[2].published == Date(timeIntervalSince1970: 1_769_792_400))
    #expect(items[0].identity == .everywhere("tag:forge.example.org,2024:harbour/4.1.0"))
  }

  @Test func `what is missing is missing, and each item is an item all the same`() throws {
    let items = Self.read(try Catalogue.sample("sparse.xml")).items
    #expect(
      items.map(\.title) == [
        "Only a title", "Only a description, which is longer than a title should …", "(without a title)",
        "A date that is none",
        "Two digits of a year", "(without a title)",
      ]
    )
    #expect(items.map(\.published) == [nil, nil, nil, nil, Date(timeIntervalSince1970: 1_770_297_300), nil])
    #expect(items[2].identity == .everywhere("https://odds.example.org/only-a-link"))
    #expect(items[3].identity == .inItsFeed("17"))
    #expect(Set(items.map { "\($0.identity)" }).count == 6)
  }

  @Test func `CDATA, entities and markup become plain text`() {
    let items = Self.rss(
      """
      <item><title>A &amp;amp; B</title><description><![CDATA[<p>1 &lt; 2</p><p>a&nbsp;b&mdash;c</p>]]></description></item>
      <item><title>x &lt; y</title><description>&lt;b&gt;bold&lt;/b&gt;&eacute;&unknown; &amp; &amp;</description></item>
      """
    ).items
    #expect(items.map(\.title) == ["A & B", "x < y"])
    #expect(items.map(\.summary) == ["1 < 2 a b—c", "bold é&unknown; & &"])
  }

  @Test func `of a description and a full text the description counts, wherever it stands`() {
    let items = Self.rss(
      """
      <item><content:encoded xmlns:content="c">full</content:encoded><description>short</description></item>
      <item><description>short</description><content:encoded xmlns:content="c">full</content:encoded></item>
      <item><content:encoded xmlns:content="c"><![CDATA[full]]></content:encoded></item>
      """
    ).items
    #expect(items.map(\.summary) == ["short", "short", "full"])
  }

  @Test func `a long text is cut between characters`() {
    let items = Self.rss(
      "<item><title>t</title><description>x\(String(repeating: "é", count: 3_000))</description></item>"
    ).items
    #expect(items[0].summary == "x" + String(repeating: "é", count: 999))
  }

  @Test(arguments: [
    (
      "<!DOCTYPE html><html><head><meta charset=utf-8></head></html>",
      "a web page; its source may name the feed's address"
    ),
    ("<rdf:RDF xmlns:rdf='r'><item/></rdf:RDF>", "RSS 1.0, and only RSS 2.0 and Atom are read here"),
    ("<opml version='2.0'/>", "a list of feeds (OPML); give the addresses that are in it"),
    ("<svg/>", "XML of another kind, <svg>"),
  ])
  func `a document of another kind is named`(text: String, what: String) {
    #expect(Self.read(text.utf8).failure as? NotAFeed == NotAFeed(what: what))
  }

  @Test(arguments: [
    (
      "<rss><channel><item><title>1</title></item><item><title>a & b</title></item></channel></rss>", 1,
      "an & or < that is not"
    ),
    ("<rss><channel><item><title>1</title></item><item></channel></rss>", 1, "a closing tag"),
    ("<rss><channel><item><title>1</title></item>", 1, "the document ends too early"),
    ("<rss><channel><item><title>1</title></item></channel></rss><rss/>", 1, "something after the end"),
    ("{\"version\": \"https://jsonfeed.org/version/1.1\"}", 0, XMLFailure.notXML),
    ("", 0, "the document ends too early"),
    ("<?xml version='1.0' encoding='klingon'?><rss/>", 0, "an encoding that is not known"),
  ])
  func `what is malformed fails there, after the items before it`(text: String, items: Int, reason: String) {
    let read = Self.read(text.utf8)
    #expect(read.items.count == items)
    let found = (read.failure as? XMLFailure)?.reason ?? "\(String(describing: read.failure))"
    #expect(found.contains(reason))
  }

  @Test func `entities that would grow without end grow nothing`() {
    let text = """
      <!DOCTYPE rss [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>
      <rss><channel><title>&c;&c;&c;</title></channel></rss>
      """
    #expect(Self.read(text.utf8).title.isEmpty)
  }

  @Test func `no more is read than is asked for`() {
    let source = CountingBytes(BytesInMemory(ArchiveFeed(bytes: 2_000_000).contents))
    let parts = feedParts(in: xmlPieces(of: source))
    #expect(source.bytes == 0)
    #expect(parts.next() == .title("The Archive"))
    #expect(source.bytes <= 131_072)
    parts.close()
    #expect(source.bytes <= 131_072)
  }

  private final class CountingBytes: ByteSource {
    let source: BytesInMemory
    var bytes = 0

    init(_ source: BytesInMemory) { self.source = source }

    func read(into buffer: UnsafeMutableRawBufferPointer) -> Int {
      let count = source.read(into: buffer)
      bytes += count
      return count
    }
  }
}
#endif
