/// A name that a peer may have chosen, and how the library shows it.
enum Hostile {
  static let text = "a\nb\r\t\0\u{1B}[31m\u{7F}\u{9B}\u{2028}\u{2029}\u{202E}\u{2066}\u{200F}\u{61C}\"\\é🙂"
  /// In a line of text.
  static let line = #"a\nb\r\t\0\u{1B}[31m\u{7F}\u{9B}\u{2028}\u{2029}\u{202E}\u{2066}\u{200F}\u{61C}"\é🙂"#
  /// Between quotation marks.
  static let name = #"a\nb\r\t\0\u{1B}[31m\u{7F}\u{9B}\u{2028}\u{2029}\u{202E}\u{2066}\u{200F}\u{61C}\"\\é🙂"#

  private static let hugeText = text + String(repeating: "\n\u{1B}[2Jx", count: 160_000)

  /// How much of it there is.
  enum Length: String, CaseIterable, Codable {
    case short
    case huge

    /// The text; the huge one has a million bytes.
    var text: String { self == .huge ? Hostile.hugeText : Hostile.text }
    var failure: Failure { Failure(description: text) }
  }

  /// The error of a peer's message.
  struct Failure: Error, CustomStringConvertible {
    var description = Hostile.text
  }

  /// Whether no character of a text ends a line, reaches a terminal, or changes the direction of writing.
  static func isHarmless(_ text: some StringProtocol) -> Bool {
    text.unicodeScalars.allSatisfy {
      switch $0.value {
      case 0..<0x20, 0x7F...0x9F, 0x61C, 0x200E...0x200F, 0x2028...0x202E, 0x2066...0x206F: false
      default: true
      }
    }
  }
}
