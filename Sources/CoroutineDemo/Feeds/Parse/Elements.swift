#if Demo
import Coroutine

/// The elements of a document, read as a recursive descent reads them: each function takes one element's events, from
/// behind its opening tag to its closing one.
///
/// The events come from a generator that is asked for one more each time, so nothing is kept but what is returned.
struct Elements {
  private let events: Generator<XMLEvent, Never, Void>

  init(_ events: Generator<XMLEvent, Never, Void>) {
    self.events = events
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
      switch event {
      case .start(let name, let attributes): try body(name, attributes)
      case .text: break
      case .end: return
      }
    }
  }

  /// All text of the element, that of elements inside it included: it comes in pieces.
  func text() throws -> String {
    var text = ""
    var depth = 0
    while let event = try next() {
      switch event {
      case .start: depth += 1
      case .text(let piece): text += piece
      case .end:
        if depth == 0 { return text }
        depth -= 1
      }
    }
    return text
  }

  func skip() throws {
    var depth = 0
    while let event = try next() {
      switch event {
      case .start: depth += 1
      case .text: break
      case .end:
        if depth == 0 { return }
        depth -= 1
      }
    }
  }

  /// nil: the document is over. Unlike the generator's own `next`, a fault in the document is thrown here.
  private func next() throws -> XMLEvent? {
    if let event = events.next() { return event }
    if let failure = events.failure { throw failure }
    return nil
  }
}
#endif
