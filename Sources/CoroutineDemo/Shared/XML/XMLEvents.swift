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
struct XMLFailure: Error, Equatable, CustomStringConvertible {
  var line: Int
  var reason: String

  /// The reason where it begins like nothing that XML begins with.
  static let notXML = "this is no XML"

  var description: String { "line \(line): \(reason)" }
}

/// The events of a document, as they are asked for.
///
/// Foundation's parser pushes: once started it pulls bytes and calls its delegate until the document is over. Here it is
/// the body of a generator that yields with the frames of the parser under it, so the document is read as far as events
/// are taken, and not a buffer further. Dropping the generator raises GeneratorClosed at the yield, and the parser is told
/// that the document is over. A document that is not well formed fails with XMLFailure, after the events before the fault.
///
/// It yields where the parser asks for more bytes, not where it calls its delegate: in a callback libxml2 has pointers to
/// the parser in thread-local variables, and a consumer that waits there may go on on another thread.
///
/// `entity` gives the text of an entity that neither XML nor the document declares.
func xmlEvents(
  of source: some ByteSource,
  entity: @escaping (String) -> String? = { _ in nil }
) -> Generator<XMLEvent, Never, Void> {
  co_sequence { yield in
    let collector = EventCollector(entity)
    let stream = YieldingStream(source, collector, yield)
    let parser = XMLParser(stream: stream)
    parser.delegate = collector
    let isComplete = parser.parse()
    // What the last bytes brought; it is nothing where the yield has thrown.
    if stream.failure == nil { try collector.events.take().forEach { try yield($0) } }
    if let failure = stream.failure { throw failure }
    if let problem = collector.problem { throw problem }
    // The parser takes the end of a stream for the end of the document.
    if collector.depth != 0 || !collector.hasRoot {
      throw XMLFailure(line: parser.lineNumber, reason: "the document ends too early")
    }
    if !isComplete { throw XMLFailure(line: parser.lineNumber, reason: "the XML is not well formed") }
  }
}

/// The stream that the parser reads: before each piece it gives away the events of the piece before it.
private final class YieldingStream: InputStream {
  /// A piece becomes events all at once: the smaller it is, the less is parsed that nobody asks for.
  private static let piece = 16_384
  private let source: any ByteSource
  private let collector: EventCollector
  private let yield: Yielder<XMLEvent, Never>
  /// What the source or a yield has thrown. `read` can say so only by ending the document.
  private(set) var failure: (any Error)?

  init(_ source: any ByteSource, _ collector: EventCollector, _ yield: Yielder<XMLEvent, Never>) {
    (self.source, self.collector, self.yield) = (source, collector, yield)
    super.init(data: Data())
  }

  override func open() {}

  override func close() {}

  override var hasBytesAvailable: Bool { true }

  override func read(_ buffer: UnsafeMutablePointer<UInt8>, maxLength length: Int) -> Int {
    guard failure == nil else { return 0 }
    do {
      for event in collector.events.take() { try yield(event) }
      guard collector.problem == nil else { return 0 }
      return try source.read(into: UnsafeMutableRawBufferPointer(start: buffer, count: min(length, Self.piece)))
    } catch {
      failure = error
      return 0
    }
  }
}

/// The parser's delegate: keeps the events of a piece until the stream gives them away.
private final class EventCollector: NSObject, XMLParserDelegate {
  private let entity: (String) -> String?
  var events = Pending()
  /// The first thing that is wrong with the document; the parser goes on after it, and what it finds there is guesswork.
  private(set) var problem: XMLFailure?
  /// How many elements are open.
  private(set) var depth = 0
  private(set) var hasRoot = false

  init(_ entity: @escaping (String) -> String?) {
    self.entity = entity
  }

  /// Events that have been parsed and not been asked for.
  struct Pending {
    private var events: [XMLEvent] = []

    mutating func add(_ event: XMLEvent) { events.append(event) }

    mutating func take() -> [XMLEvent] {
      defer { events = [] }
      return events
    }
  }

  private func give(_ event: XMLEvent) {
    if problem == nil { events.add(event) }
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
    give(.start(elementName, attributes: attributes))
  }

  func parser(_ parser: XMLParser, didEndElement elementName: String, namespaceURI: String?, qualifiedName: String?) {
    depth -= 1
    give(.end(elementName))
  }

  func parser(_ parser: XMLParser, foundCharacters string: String) {
    give(.text(string))
  }

  func parser(_ parser: XMLParser, foundCDATA block: Data) {
    give(.text(String(decoding: block, as: UTF8.self)))
  }

  /// Despite its name, Foundation asks this for every entity that it does not know.
  func parser(_ parser: XMLParser, resolveExternalEntityName name: String, systemID: String?) -> Data? {
    give(.text(entity(name) ?? "&\(name);"))
    return nil
  }

  func parser(_ parser: XMLParser, parseErrorOccurred parseError: any Error) {
    let code = (parseError as NSError).code
    guard problem == nil, code != Self.undeclaredEntity else { return }
    problem = XMLFailure(line: parser.lineNumber, reason: Self.reasons[code] ?? "the XML is not well formed (\(code))")
  }

  /// Only a warning, where the document refers to a declaration elsewhere.
  private static let undeclaredEntity = 27
  /// By libxml2's numbers, the faults that real documents have.
  private static let reasons = [
    4: XMLFailure.notXML, 5: "there is something after the end of the document", 9: "bytes that its encoding does not have",
    26: "an entity that is not declared", 32: "an encoding that is not known", 64: "something stands before <?xml",
    68: "an & or < that is not escaped", 76: "a closing tag that closes nothing, or something else",
  ]
}
#endif
