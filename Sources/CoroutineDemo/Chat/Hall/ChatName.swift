#if Demo
/// The name of a client or a room: it stands in other people's terminals.
///
/// ASCII only, so that no two names look the same and are not, and no name imitates the server's own lines.
enum ChatName {
  static let longest = 20
  static let rule = "A name begins with a letter, and has up to \(longest) letters, digits, - and _ of ASCII."

  static func isValid(_ text: some StringProtocol) -> Bool {
    guard let first = text.utf8.first, isLetter(first), text.utf8.count <= longest else { return false }
    return text.utf8.allSatisfy { isLetter($0) || isDigit($0) || $0 == UInt8(ascii: "-") || $0 == UInt8(ascii: "_") }
  }

  /// Names that differ only in their case are the same name.
  static func key(_ name: String) -> String { name.lowercased() }

  private static func isLetter(_ byte: UInt8) -> Bool {
    (UInt8(ascii: "a")...UInt8(ascii: "z")).contains(byte | 0x20)
  }

  private static func isDigit(_ byte: UInt8) -> Bool { (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(byte) }
}

extension StringProtocol {
  /// The text as a line that is safe to show in somebody else's terminal.
  ///
  /// Control characters would move its cursor, and change its colours or its title. Characters that change the
  /// direction, or end a line, would make one message look like another. A tab stays.
  var shownSafely: String {
    guard unicodeScalars.contains(where: Self.isUnsafe) else { return String(self) }
    var text = String.UnicodeScalarView()
    for scalar in unicodeScalars { text.append(Self.isUnsafe(scalar) ? "\u{FFFD}" : scalar) }
    return String(text)
  }

  private static func isUnsafe(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0x09: false
    case 0x00...0x1F, 0x7F...0x9F, 0x061C, 0x200E...0x200F, 0x2028...0x202E, 0x2066...0x2069: true
    default: false
    }
  }
}
#endif
