#if Demo
/// What a reader sees of a piece of HTML: no tags, entities as characters, runs of white space as one space.
///
/// Titles and descriptions are HTML in one feed and plain text in the next, without a word about it. A `<` that begins
/// no tag and an `&` that begins no entity stay what they are, which is right for both.
enum PlainText {
  /// Long texts are cut: a database of summaries is no archive.
  static let longest = 2_000

  static func of(_ html: String) -> String {
    var html = html
    let plain = html.withUTF8(plainPrefix)
    // Most titles and names are what they look like.
    if plain == html.utf8.count { return html }
    return html.withUTF8 { bytes in
      // No character is longer than what stands for it, and four bytes are room for one begun at the limit.
      String(unsafeUninitializedCapacity: min(bytes.count, longest) + 4) { text in
        _ = text.update(fromContentsOf: bytes.prefix(plain))
        return write(bytes, to: text, from: plain)
      }
    }
  }

  /// How many bytes at the beginning stay what they are.
  private static func plainPrefix(_ bytes: UnsafeBufferPointer<UInt8>) -> Int {
    if let last = bytes.last, last <= 32 || bytes.count > longest { return 0 }
    var previous: UInt8 = 32
    for index in bytes.indices {
      let byte = bytes[index]
      let isSpecial = byte == UInt8(ascii: "<") || byte == UInt8(ascii: "&") || byte < 32
      if isSpecial || byte == 32 && previous == 32 { return index }
      if byte == 0xA0 && previous == 0xC2 { return index - 1 }
      previous = byte
    }
    return bytes.count
  }

  /// Returns how long the text is; its first `start` bytes are written already.
  private static func write(
    _ bytes: UnsafeBufferPointer<UInt8>,
    to text: UnsafeMutableBufferPointer<UInt8>,
    from start: Int
  ) -> Int {
    var (index, count) = (start, start)

    func write(_ byte: UInt8) {
      // One space for any run of white space, and none at the beginning.
      if byte <= 32 && (count == 0 || text[count - 1] == 32) { return }
      text[count] = max(byte, 32)
      count += 1
    }

    while index < bytes.count, count < longest {
      let byte = bytes[index]
      if byte == UInt8(ascii: "<"), let end = endOfTag(in: bytes, at: index) {
        // A tag parts words as often as not ("<p>", "<br>"); in the middle of a word it hardly ever stands.
        write(32)
        index = end
      } else if byte == UInt8(ascii: "&"), let (character, end) = entity(in: bytes, at: index) {
        if character == "\u{A0}" { write(32) } else { character.utf8.forEach(write) }
        index = end
      } else if byte == 0xC2, index + 1 < bytes.count, bytes[index + 1] == 0xA0 {
        // A space that does not break lines; nobody searches for one.
        write(32)
        index += 2
      } else {
        write(byte)
        index += 1
      }
    }
    // Cut between characters, not inside of one.
    while index < bytes.count, count > 0, bytes[index] & 0xC0 == 0x80 {
      index -= 1
      count -= 1
    }
    while count > 0, text[count - 1] == 32 { count -= 1 }
    return count
  }

  /// For items without a title: the first words of what they say.
  static func heading(of text: String) -> String {
    if text.isEmpty { return "(without a title)" }
    return text.count <= 60 ? text : text.prefix(60).split(separator: " ").dropLast().joined(separator: " ") + " …"
  }

  /// Behind the `>` of a tag or comment that begins at `start`.
  private static func endOfTag(in bytes: UnsafeBufferPointer<UInt8>, at start: Int) -> Int? {
    guard start + 1 < bytes.count else { return nil }
    switch bytes[start + 1] {
    case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "/"),
      UInt8(ascii: "!"):
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
