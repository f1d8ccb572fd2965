#if Demo
import Coroutine
import Foundation
import FoundationXML

/// What a parser meets on its way through a document.
enum XMLEvent: Equatable, Sendable {
  case start(String, attributes: [String: String])
  case text(String)
  case end(String)
}

/// Why a document cannot be read, and where.
struct XMLFailure: Error, CustomStringConvertible {
  var line: Int
  var reason: String

  var description: String { "line \(line): \(reason)" }
}

/// The events of a document, as they are asked for.
///
/// Foundation's parser pushes: once started it calls its delegate until the document is over. Here it is the body of a
/// generator, and the delegate yields from inside of the callback, with the frames of the parser under it; so the document
/// is read as far as events are taken, and not a buffer further. Dropping the generator raises GeneratorClosed in the
/// callback, which then stops the parser. A document that is not well formed fails with XMLFailure.
func xmlEvents(of stream: InputStream) -> Generator<XMLEvent, Never, Void> {
  co_sequence { yield in
    let delegate = EventYielder(yield)
    let parser = XMLParser(stream: stream)
    parser.delegate = delegate
    let isComplete = parser.parse()
    if let reason = delegate.stopped { throw reason }
    if !isComplete {
      let reason = parser.parserError.map { "\($0)" } ?? "the stream cannot be read"
      throw XMLFailure(line: parser.lineNumber, reason: delegate.problem ?? reason)
    }
    // The parser takes the end of a stream for the end of the document.
    if delegate.depth != 0 || !delegate.hasRoot {
      throw XMLFailure(line: parser.lineNumber, reason: "the document ends too early")
    }
  }
}

private final class EventYielder: NSObject, XMLParserDelegate {
  private let yield: Yielder<XMLEvent, Never>
  /// What a yield has thrown: nobody wants any more events.
  private(set) var stopped: (any Error)?
  /// The first thing that is wrong with the document.
  private(set) var problem: String?
  /// How many elements are open.
  private(set) var depth = 0
  private(set) var hasRoot = false

  init(_ yield: Yielder<XMLEvent, Never>) {
    self.yield = yield
  }

  /// A callback cannot throw, so the error is kept, and the parser asked to stop.
  private func give(_ event: XMLEvent, _ parser: XMLParser) {
    guard stopped == nil else { return }
    do {
      try yield(event)
    } catch {
      stopped = error
      parser.abortParsing()
    }
  }

  func parser(
    _ parser: XMLParser,
    didStartElement elementName: String,
    namespaceURI: String?,
    qualifiedName: String?,
    attributes: [String: String]
  ) {
    depth += 1
    hasRoot = true
    give(.start(elementName, attributes: attributes), parser)
  }

  func parser(_ parser: XMLParser, didEndElement elementName: String, namespaceURI: String?, qualifiedName: String?) {
    depth -= 1
    give(.end(elementName), parser)
  }

  func parser(_ parser: XMLParser, foundCharacters string: String) {
    give(.text(string), parser)
  }

  func parser(_ parser: XMLParser, parseErrorOccurred parseError: any Error) {
    if problem == nil { problem = "the XML is not well formed (\((parseError as NSError).code))" }
  }
}
#endif
