#if Demo
import Coroutine
import Foundation
import Testing

@testable import CoroutineDemo

@Suite(.timeLimit(.minutes(10))) struct `XML as a sequence` {
  private func stream(_ text: String) -> BytesInMemory { BytesInMemory(text.utf8) }

  @Test func `events come in the document's order`() {
    let events = xmlEvents(of: stream("<a x='1'><b>one &amp; two</b><c/></a>"))
    var text = ""
    var tags: [String] = []
    for event in events {
      switch event {
      case .start(let name, let attributes): tags.append("<\(name)\(attributes["x"] ?? "")")
      case .end(let name): tags.append(">\(name)")
      case .text, .cdata: text += event.text ?? ""
      }
    }
    #expect(tags == ["<a1", "<b", ">b", "<c", ">c", ">a"])
    #expect(text == "one & two")
    #expect(events.failure == nil)
  }

  @Test func `nothing is read before the first event, and no more than a piece for it`() throws {
    let list = try BookList(bytes: 1_000_000)
    let stream = list.file.reader()
    let events = xmlEvents(of: stream)
    #expect(stream.bytesRead == 0)
    #expect(events.next() == .start("books", attributes: [:]))
    #expect(stream.bytesRead < 200_000)
  }

  @Test func `typed elements are what was written, with markup and names as they were`() throws {
    let list = try BookList(bytes: 100_000)
    let books = Array(books(in: xmlEvents(of: list.file.reader())))
    #expect(books.count == list.count)
    #expect(books == (0..<list.count).map(BookList.book))
    #expect(books[0].author == "Ada & Co.")
    #expect(books[0].title == "Volume 1 of <many>")
  }

  @Test func `when the consumer stops, the parser stops reading, wherever it is`() throws {
    let list = try BookList(bytes: 1_000_000)
    let stream = list.file.reader()
    do {
      let books = books(in: xmlEvents(of: stream))
      #expect(Array(books.prefix(2)).map(\.number) == [1, 2])
    }
    let read = stream.bytesRead
    #expect(read < 200_000)
    // An explicit close has the same effect.
    let events = xmlEvents(of: list.file.reader())
    _ = events.next()
    events.close()
    #expect(events.isFinished)
    #expect(events.failure == nil)
  }

  @Test func `two documents are read in turn, a piece of each at a time`() throws {
    let (one, other) = (try BookList(bytes: 200_000), try BookList(bytes: 150_000))
    let first = books(in: xmlEvents(of: one.file.reader()))
    let second = books(in: xmlEvents(of: other.file.reader()))
    var counts = (0, 0)
    while true {
      let (a, b) = (first.next(), second.next())
      if a != nil { counts.0 += 1 }
      if b != nil { counts.1 += 1 }
      if a == nil && b == nil { break }
    }
    #expect(counts == (one.count, other.count))
    #expect(first.failure == nil && second.failure == nil)
  }

  @Test(arguments: ["<a><b></a>", "<a>", "<a/><b>", "", "no markup"])
  func `a document that is not well formed is a failure, after what came before it`(text: String) {
    let events = xmlEvents(of: stream(text))
    for _ in events {}
    #expect(events.failure is XMLFailure, "\(String(describing: events.failure))")
  }

  @Test(arguments: [
    ("<book><title>t</title><author>a</author><cents>1</cents></book>", "number"),
    ("<book number='1'><author>a</author><cents>1</cents></book>", "title"),
    ("<book number='1'><title>t</title><author>a</author><cents>much</cents></book>", "price"),
  ])
  func `a book that lacks something ends the sequence with that`(text: String, missing: String) {
    let books = books(in: xmlEvents(of: stream("<books>\(text)</books>")))
    #expect(books.next() == nil)
    #expect(books.failure as? BookFailure == BookFailure(missing: missing))
  }
}
#endif
