#if Demo
import Coroutine

/// The elements of a document, read as a recursive descent reads them: each function takes one element's events, from
/// behind its opening tag to its closing one.
///
/// The events come from a generator that is asked for a piece more each time the last one is used up, so nothing is
/// kept but that piece and what is returned.
final class Elements {
  private let document: Generator<XMLPiece, Never, Void>
  /// What is left of the piece, its next event last: taken from the end, events are moved instead of copied.
  ///
  /// Unchecked, because a check of each event takes a tenth of the parsing; no access lasts longer than its line.
  @exclusivity(unchecked) private var piece: [XMLEvent] = []

  init(_ document: Generator<XMLPiece, Never, Void>) {
    self.document = document
  }

  /// The outermost element: its name and attributes.
  func root() throws -> (name: String, attributes: [String: String]) {
    while let event = try next() {
      if case .start(let name, let attributes) = event { return (name, attributes) }
    }
    throw XMLFailure(line: 0, reason: "the document has no element")
  }

  /// Calls `body` for each child of the element; `body` reads it, by one of these functions.
  func children(_ body: (_ name: String, _ attributes: [String: String]) throws -> Void) throws {
    while let event = try next() {
      switch consume event {
      case .start(let name, let attributes): try body(name, attributes)
      case .text, .cdata: break
      case .end: return
      }
    }
  }

  /// All text of the element: it comes in pieces.
  ///
  /// That of elements inside it is included, with a space where one begins or ends, since "<li>one</li><li>two</li>" is
  /// two words.
  func text() throws -> String {
    var text = ""
    var depth = 0
    while let event = try next() {
      switch consume event {
      case .start:
        depth += 1
        text += " "
      case .text(let piece): if text.isEmpty { text = piece } else { text += piece }
      case .cdata(let bytes): text += String(decoding: bytes, as: UTF8.self)
      case .end:
        if depth == 0 { return text }
        depth -= 1
        text += " "
      }
    }
    return text
  }

  func skip() throws {
    var depth = 0
    while let event = try next() {
      switch consume event {
      case .start: depth += 1
      case .text, .cdata: break
      case .end:
        if depth == 0 { return }
        depth -= 1
      }
    }
  }

  /// Reads to the end of the document: what is wrong behind the last element of interest is wrong all the same.
  func finish() throws {
    while try next() != nil {}
  }

  /// nil: the document is over.
  ///
  /// A fault in it is thrown.
  @inline(__always)
  private func next() throws -> XMLEvent? {
    if let event = piece.popLast() { return event }
    return try firstOfNextPiece()
  }

  private func firstOfNextPiece() throws -> XMLEvent? {
    while case .yielded(let more) = try document.step() {
      piece = more.take()
      piece.reverse()
      if let event = piece.popLast() { return event }
    }
    return nil
  }
}
#endif
