#if Demo
import Coroutine
import Foundation
import FoundationXML
import Testing

@testable import CoroutineDemo

/// The time in which the reader makes items of a feed, compared with the time in which Foundation's parser calls a
/// delegate that does nothing.
@Suite(.serialized, .timeLimit(.minutes(10))) struct `The speed of parsing` {
  /// The limit for an optimised build.
  ///
  /// The speed of a debug build is only printed.
  private static let limit = 1.3
  private static let isOptimised = !_isDebugAssertConfiguration()
  private static let feed = ArchiveFeed(bytes: isOptimised ? 20_000_000 : 4_000_000)

  @Test func `items come at most a third slower than bare events`() throws {
    let bytes = Array(Self.feed.contents)
    let data = Data(bytes)
    // Alternately, and the best of each: other load then disturbs both alike.
    var (reader, parser) = (Double.infinity, Double.infinity)
    for _ in 1...(Self.isOptimised ? 20 : 2) {
      parser = try min(parser, Self.time { try Self.parse(data) })
      reader = try min(reader, Self.time { try Self.read(bytes) })
    }
    let ratio = reader / parser
    print("parse speed: \(bytes.count) bytes, reader \(reader) ms, FoundationXML \(parser) ms, ratio \(ratio)")
    if Self.isOptimised { #expect(ratio <= Self.limit) }
  }

  /// Milliseconds of this thread's processor time, because other programs may be using the machine.
  private static func time(_ body: () throws -> Void) rethrows -> Double {
    var (start, end) = (timespec(), timespec())
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start)
    try body()
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end)
    return Double(end.tv_sec - start.tv_sec) * 1e3 + Double(end.tv_nsec - start.tv_nsec) / 1e6
  }

  /// All that the reader does before it stores: the document's beginning mended, events, items.
  private static func read(_ bytes: [UInt8]) throws {
    let parts = feedParts(
      in: xmlPieces(of: Prolog(BytesInMemory(bytes)), blanks: false, entity: HTMLEntities.character)
    )
    var items = 0
    while case .yielded(let part) = try parts.step() {
      if case .item = part { items += 1 }
    }
    try #require(items == feed.count)
  }

  private static func parse(_ data: Data) throws {
    let parser = XMLParser(stream: InputStream(data: data))
    let counter = Counter()
    parser.delegate = counter
    try #require(parser.parse())
    try #require(counter.elements == feed.count * 9 + 5)
  }

  private final class Counter: NSObject, XMLParserDelegate {
    var elements = 0
    var texts = 0

    func parser(
      _ parser: XMLParser,
      didStartElement elementName: String,
      namespaceURI: String?,
      qualifiedName: String?,
      attributes: [String: String]
    ) {
      elements += 1
    }

    func parser(_ parser: XMLParser, didEndElement elementName: String, namespaceURI: String?, qualifiedName: String?) {
    }

    func parser(_ parser: XMLParser, foundCharacters string: String) { texts += 1 }

    func parser(_ parser: XMLParser, foundCDATA block: Data) { texts += 1 }
  }
}

extension ArchiveFeed {
  /// The complete text, as the server would send it.
  var contents: [UInt8] {
    var bytes: [UInt8] = []
    var pieces = makeAsyncIterator()
    while let piece = pieces.nextPiece(atLeast: 65_536) { bytes += piece }
    return bytes
  }
}
#endif
