#if Demo
import Coroutine
import Foundation
import FoundationXML

/// What a parser meets on its way through a document.
enum XMLEvent: Equatable, Sendable {
  case start(String, attributes: [String: String])
  case text(String)
  /// Text too, not decoded yet: it is often all of a page, and often skipped.
  case cdata(Data)
  case end(String)

  /// What it adds to the text around it.
  var text: String? {
    switch self {
    case .text(let text): text
    case .cdata(let bytes): String(decoding: bytes, as: UTF8.self)
    case .start, .end: nil
    }
  }
}

/// The events that came of some kilobytes of a document.
final class XMLPiece {
  private var events: [XMLEvent]

  init(_ events: [XMLEvent]) {
    self.events = events
  }

  /// To be called once: who takes them has the only copy.
  func take() -> [XMLEvent] {
    defer { events = [] }
    return events
  }
}

/// Why a document cannot be read, and where.
struct XMLFailure: Error, Equatable, CustomStringConvertible {
  var line: Int
  var reason: String

  /// The reason where it begins like nothing that XML begins with.
  static let notXML = "this is no XML"
  static let tooEarly = "the document ends too early"

  var description: String { "line \(line): \(reason)" }
}

/// The events of a document, one by one; see ``xmlPieces(of:blanks:entity:)``.
func xmlEvents(of source: some ByteSource, blanks: Bool = true) -> Generator<XMLEvent, Never, Void> {
  co_sequence { yield in
    let pieces = xmlPieces(of: source, blanks: blanks)
    while case .yielded(let piece) = try pieces.step() { try yield.all(of: piece.take()) }
  }
}

/// The events of a document as they are asked for, those of a piece of 128 KiB at most at a time.
///
/// Foundation's parser pushes: once started it pulls bytes and calls its delegate until the document is over. Here it
/// is the body of a generator that yields with the frames of the parser under it, so the document is read as far as
/// events are taken, and not a piece further. Dropping the generator raises GeneratorClosedError at the yield, and the
/// parser is told that the document is over. A document that is not well formed fails with XMLFailure, after the events
/// before the fault.
///
/// It yields where the parser asks for more bytes, not where it calls its delegate: in a callback libxml2 has pointers
/// to the parser in thread-local variables, and a consumer that waits there may go on on another thread. It also costs
/// one switch a piece instead of one an event.
///
/// `entity` gives the text of an entity that neither XML nor the document declares. With `blanks` false, white space
/// that stands alone between two tags is no event: a quarter of all events is the line breaks of a document's layout.
func xmlPieces(
  of source: some ByteSource,
  blanks: Bool = true,
  entity: @escaping (String) -> String? = { _ in nil }
) -> Generator<XMLPiece, Never, Void> {
  co_sequence { yield in
    let collector = EventCollector(blanks: blanks, entity)
    let stream = YieldingStream(source, collector, yield)
    let parser = XMLParser(stream: stream)
    parser.delegate = collector
    let isComplete = parser.parse()
    if let failure = stream.failure { throw failure }
    // What the last bytes brought.
    try yield(collector.document.take())
    let document = collector.document
    if let problem = document.problem { throw problem }
    // The parser takes the end of a stream for the end of the document.
    if document.depth != 0 || !document.hasRoot {
      throw XMLFailure(line: parser.lineNumber, reason: XMLFailure.tooEarly)
    }
    if !isComplete { throw XMLFailure(line: parser.lineNumber, reason: "the XML is not well formed") }
  }
}

/// The stream that the parser reads: before each piece it gives away the events of the piece before it.
private final class YieldingStream: InputStream {
  private let source: any ByteSource
  private let collector: EventCollector
  private let yield: Yielder<XMLPiece, Never>
  /// What the source or a yield has thrown.
  ///
  /// `read` can say so only by ending the document.
  private(set) var failure: (any Error)?

  init(_ source: any ByteSource, _ collector: EventCollector, _ yield: Yielder<XMLPiece, Never>) {
    (self.source, self.collector, self.yield) = (source, collector, yield)
    super.init(data: Data())
  }

  override func open() {}

  override func close() {}

  override var hasBytesAvailable: Bool { true }

  override func read(_ buffer: UnsafeMutablePointer<UInt8>, maxLength length: Int) -> Int {
    guard failure == nil else { return 0 }
    do {
      if collector.document.hasEvents { try yield(collector.document.take()) }
      guard collector.document.problem == nil else { return 0 }
      return try source.read(into: UnsafeMutableRawBufferPointer(start: buffer, count: length))
    } catch {
      failure = error
      return 0
    }
  }
}

/// The parser's delegate: keeps the events of a piece until the stream gives them away.
private final class EventCollector: NSObject, XMLParserDelegate {
  /// What has been found.
  struct Document {
    private var events: [XMLEvent] = []
    /// The first thing that is wrong; the parser goes on after it, and what it finds there is guesswork.
    var problem: XMLFailure?
    /// How many elements are open.
    private(set) var depth = 0
    private(set) var hasRoot = false
    /// Text comes in pieces: a blank one is white space between tags only where no other stands before it.
    private(set) var endsInText = false

    mutating func add(tag event: XMLEvent, depth change: Int) {
      depth += change
      hasRoot = true
      endsInText = false
      if problem == nil { events.append(event) }
    }

    mutating func add(text event: XMLEvent) {
      endsInText = true
      if problem == nil { events.append(event) }
    }

    var hasEvents: Bool { !events.isEmpty }

    mutating func take() -> XMLPiece {
      defer {
        events = []
        events.reserveCapacity(2_500)
      }
      return XMLPiece(events)
    }
  }

  private let blanks: Bool
  private let entity: (String) -> String?
  /// Unchecked, because a check of each callback's access takes a tenth of the parsing.
  ///
  /// Nothing calls back from within one.
  @exclusivity(unchecked) var document = Document()

  init(blanks: Bool, _ entity: @escaping (String) -> String?) {
    (self.blanks, self.entity) = (blanks, entity)
  }

  func parser(
    _ parser: XMLParser,
    didStartElement elementName: String,
    namespaceURI: String?,
    qualifiedName: String?,
    attributes: [String: String]
  ) {
    document.add(tag: .start(elementName, attributes: attributes), depth: 1)
  }

  func parser(_ parser: XMLParser, didEndElement elementName: String, namespaceURI: String?, qualifiedName: String?) {
    document.add(tag: .end(elementName), depth: -1)
  }

  func parser(_ parser: XMLParser, foundCharacters string: String) {
    if blanks || document.endsInText || !string.utf8.allSatisfy({ $0 <= 32 }) { document.add(text: .text(string)) }
  }

  func parser(_ parser: XMLParser, foundCDATA block: Data) {
    document.add(text: .cdata(block))
  }

  /// Despite its name, Foundation asks this for every entity that it does not know.
  func parser(_ parser: XMLParser, resolveExternalEntityName name: String, systemID: String?) -> Data? {
    document.add(text: .text(entity(name) ?? "&\(name);"))
    return nil
  }

  func parser(_ parser: XMLParser, parseErrorOccurred parseError: any Error) {
    let code = (parseError as NSError).code
    guard document.problem == nil, code != Self.undeclaredEntity else { return }
    let reason = Self.reasons[code] ?? "the XML is not well formed (\(code))"
    let isCutOff = code == Self.end && document.depth > 0
    document.problem = XMLFailure(line: parser.lineNumber, reason: isCutOff ? XMLFailure.tooEarly : reason)
  }

  /// Something is wrong at the end: it should have come later, or earlier.
  private static let end = 5
  /// Only a warning, where the document refers to a declaration elsewhere.
  private static let undeclaredEntity = 27
  /// By libxml2's numbers, the faults that real documents have.
  private static let reasons = [
    4: XMLFailure.notXML, end: "there is something after the end of the document",
    9: "bytes that its encoding does not have",
    26: "an entity that is not declared", 32: "an encoding that is not known", 64: "something stands before <?xml",
    68: "an & or < that is not escaped", 76: "a closing tag that closes nothing, or something else",
  ]
}
#endif
