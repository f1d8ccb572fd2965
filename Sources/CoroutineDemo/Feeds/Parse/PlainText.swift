#if Demo
/// What a reader sees of a piece of HTML: no tags, entities as characters, runs of white space as one space.
///
/// Titles and descriptions are HTML in one feed and plain text in the next, without a word about it. A `<` that begins no
/// tag and an `&` that begins no entity stay what they are, which is right for both.
enum PlainText {
  /// Long texts are cut: a database of summaries is no archive.
  static let longest = 2_000

  static func of(_ html: String) -> String {
    var html = html
    return html.withUTF8 { bytes in
      var text: [UInt8] = []
      text.reserveCapacity(min(bytes.count, longest))
      var index = 0
      while index < bytes.count, text.count < longest {
        let byte = bytes[index]
        if byte == UInt8(ascii: "<"), let end = endOfTag(in: bytes, at: index) {
          // A tag parts words as often as not ("<p>", "<br>"); in the middle of a word it hardly ever stands.
          space(&text)
          index = end
        } else if byte == UInt8(ascii: "&"), let (character, end) = entity(in: bytes, at: index) {
          if character == "\u{A0}" || character == " " { space(&text) } else { text += character.utf8 }
          index = end
        } else {
          if byte <= 32 { space(&text) } else { text.append(byte) }
          index += 1
        }
      }
      // Cut between characters, not inside of one.
      while text.count >= longest, let last = text.last, last & 0xC0 == 0x80 || last >= 0xC0 { text.removeLast() }
      while text.last == 32 { text.removeLast() }
      return String(decoding: text, as: UTF8.self)
    }
  }

  /// For items without a title: the first words of what they say.
  static func heading(of text: String) -> String {
    if text.isEmpty { return "(without a title)" }
    return text.count <= 60 ? text : text.prefix(60).split(separator: " ").dropLast().joined(separator: " ") + " …"
  }

  private static func space(_ text: inout [UInt8]) {
    if let last = text.last, last != 32 { text.append(32) }
  }

  /// Behind the `>` of a tag or comment that begins at `start`.
  private static func endOfTag(in bytes: UnsafeBufferPointer<UInt8>, at start: Int) -> Int? {
    guard start + 1 < bytes.count else { return nil }
    switch bytes[start + 1] {
    case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "/"), UInt8(ascii: "!"):
      return bytes[start...].firstIndex(of: UInt8(ascii: ">")).map { $0 + 1 }
    default: return nil
    }
  }

  /// The character that `&…;` means, and where it ends.
  private static func entity(in bytes: UnsafeBufferPointer<UInt8>, at start: Int) -> (String, Int)? {
    let window = bytes[(start + 1)..<min(start + 12, bytes.count)]
    guard let end = window.firstIndex(of: UInt8(ascii: ";")), end > start + 1 else { return nil }
    let name = String(decoding: bytes[(start + 1)..<end], as: UTF8.self)
    return HTMLEntities.character(name).map { ($0, end + 1) }
  }
}
#endif
