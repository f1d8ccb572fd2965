#if Demo
import Foundation

/// A document of many books, made up: the same for the same size.
struct BookList {
  let file: ScratchFile
  let bytes: Int
  let count: Int
  /// The sum of all prices, for whoever has read them all to compare with.
  let cents: Int

  /// At least `bytes` bytes.
  init(bytes wanted: Int) throws {
    let file = try ScratchFile()
    var (bytes, count, cents) = (0, 0, 0)
    var buffer = Array("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<books>\n".utf8)
    while bytes + buffer.count < wanted {
      let book = Self.book(count)
      buffer += Self.text(of: book).utf8
      count += 1
      cents += book.cents
      if buffer.count > 1 << 20 {
        try file.write(buffer)
        bytes += buffer.count
        buffer.removeAll(keepingCapacity: true)
      }
    }
    buffer += "</books>\n".utf8
    try file.write(buffer)
    (self.file, self.bytes, self.count, self.cents) = (file, bytes + buffer.count, count, cents)
  }

  /// The one at `index`.
  static func book(_ index: Int) -> Book {
    let authors = ["Ada & Co.", "Alan", "Grace", "Barbara"]
    return Book(
      number: index + 1,
      title: "Volume \(index + 1) of <many>",
      author: authors[index % authors.count],
      cents: 100 + index * 7_919 % 9_900
    )
  }

  private static func text(of book: Book) -> String {
    """
      <book number="\(book.number)">
        <title>\(escaped(book.title))</title>
        <author>\(escaped(book.author))</author>
        <cents>\(book.cents)</cents>
      </book>

    """
  }

  private static func escaped(_ text: String) -> String {
    var escaped = ""
    for character in text {
      switch character {
      case "&": escaped += "&amp;"
      case "<": escaped += "&lt;"
      case ">": escaped += "&gt;"
      default: escaped.append(character)
      }
    }
    return escaped
  }
}
#endif
