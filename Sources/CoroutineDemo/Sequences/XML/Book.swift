#if Demo
import Coroutine

/// What the demo's documents are lists of.
struct Book: Equatable, Sendable {
  var number: Int
  var title: String
  var author: String
  var cents: Int
}

/// A book that lacks something.
struct BookFailure: Error, Equatable, CustomStringConvertible {
  var missing: String

  var description: String { "a book has no \(missing), or one that makes no sense" }
}

/// The books of a document: typed elements, each read when it is asked for.
///
/// Straight-line code on top of straight-line code: this one asks for events as a recursive descent does, and is asked
/// for books in turn. Whoever stops asking stops both, and the parser below them.
func books(in events: Generator<XMLEvent, Never, Void>) -> Generator<Book, Never, Void> {
  co_sequence { yield in
    while let event = events.next() {
      guard case .start("book", let attributes) = event else { continue }
      try yield(try readBook(attributes, events))
    }
    if let failure = events.failure { throw failure }
  }
}

/// From behind a book's opening tag to its closing one.
private func readBook(_ attributes: [String: String], _ events: Generator<XMLEvent, Never, Void>) throws -> Book {
  var fields: [String: String] = [:]
  while let event = events.next(), event != .end("book") {
    if case .start(let field, _) = event { fields[field] = readText(of: field, events) }
  }
  if let failure = events.failure { throw failure }
  guard let number = attributes["number"].flatMap({ Int($0) }) else { throw BookFailure(missing: "number") }
  guard let title = fields["title"] else { throw BookFailure(missing: "title") }
  guard let author = fields["author"] else { throw BookFailure(missing: "author") }
  guard let cents = fields["cents"].flatMap({ Int($0) }) else { throw BookFailure(missing: "price") }
  return Book(number: number, title: title, author: author, cents: cents)
}

/// All text up to the field's closing tag: the parser gives it in pieces.
private func readText(of field: String, _ events: Generator<XMLEvent, Never, Void>) -> String {
  var text = ""
  while let event = events.next(), event != .end(field) {
    text += event.text ?? ""
  }
  return text
}
#endif
