#if Demo
/// Two pictures of one size next to each other, with a caption under each, fitted to a terminal.
struct SideBySide {
  static let gap = 2
  static let margin = 2
  /// Beyond this a picture gains nothing, and the terminal is slow to draw it.
  static let widest = 64

  var left: (image: Image, caption: String)
  var right: (image: Image, caption: String)

  /// Lines that fit into `columns` columns, and into `rows` rows where that leaves pictures big enough to see.
  func lines(columns: Int, rows: Int, on display: Display) -> [String] {
    let size = Self.fit(left.image, columns: columns, rows: rows)
    let pictures = [left, right].map { side in
      HalfBlocks.lines(side.image.scaled(toWidth: size.width, height: size.height), on: display)
    }
    let margin = String(repeating: " ", count: Self.margin)
    let gap = String(repeating: " ", count: Self.gap)
    let rows = zip(pictures[0], pictures[1]).map { margin + $0 + gap + $1 }
    let captions = [left, right].map { side in
      let caption = side.caption.prefix(size.width)
      return caption + String(repeating: " ", count: size.width - caption.count)
    }
    return rows + [margin + captions[0] + gap + captions[1]]
  }

  /// The size in pixels of each picture, its proportions kept.
  static func fit(_ image: Image, columns: Int, rows: Int) -> (width: Int, height: Int) {
    let proportion = Double(image.height) / Double(image.width)
    let widthForColumns = min(Self.widest, (columns - 2 * Self.margin - Self.gap) / 2)
    // Eight rows are left for the progress above, the captions and the prompt. Each row shows two pixels.
    let widthForRows = Int(Double(max(rows - 8, 8) * 2) / proportion)
    let width = max(4, min(widthForColumns, widthForRows))
    return (width, max(2, Int((Double(width) * proportion).rounded())))
  }
}
#endif
