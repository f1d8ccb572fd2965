#if Demo
extension Character {
  /// How many columns a terminal gives it: two for the scripts of East Asia and for most emoji.
  var columns: Int {
    guard let code = unicodeScalars.first?.value else { return 0 }
    switch code {
    case 0x1100...0x115F, 0x2E80...0x303E, 0x3041...0xA4CF, 0xAC00...0xD7A3, 0xF900...0xFAFF, 0xFE30...0xFE6F,
      0xFF00...0xFF60, 0xFFE0...0xFFE6, 0x1F300...0x1F64F, 0x1F900...0x1F9FF, 0x20000...0x3FFFD:
      return 2
    default: return 1
    }
  }
}

extension String {
  var columns: Int { reduce(0) { $0 + $1.columns } }

  /// The beginning of it that fits into `width` columns.
  func fitted(to width: Int) -> String {
    var room = width
    return String(
      prefix { character in
        room -= character.columns
        return room >= 0
      }
    )
  }

  /// In `width` columns at most; an ellipsis stands for what is cut off.
  func cut(to width: Int) -> String { columns > width ? fitted(to: width - 1) + "…" : self }

  /// In exactly `width` columns.
  func padded(to width: Int) -> String {
    let text = cut(to: width)
    return text + String(repeating: " ", count: width - text.columns)
  }
}
#endif
