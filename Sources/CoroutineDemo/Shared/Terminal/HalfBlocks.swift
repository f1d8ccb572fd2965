#if Demo
/// Pictures as lines of text: one character shows two pixels, one above the other.
///
/// A character cell is about twice as high as wide, so that half of one is about a square. `▀` paints the upper half in
/// the foreground colour and leaves the lower half to the background colour.
enum HalfBlocks {
  static let reset = "\u{1B}[0m"
  /// From dark to light on a dark terminal.
  private static let weights = Array(" .:-=+*#%@")

  /// One string for each two rows of pixels; every line resets the colours that it set.
  static func lines(_ image: Image, on display: Display) -> [String] {
    stride(from: 0, to: image.height, by: 2).map { row in
      line(image, row: row, on: display)
    }
  }

  private static func line(_ image: Image, row: Int, on display: Display) -> String {
    var line = ""
    var current = ""
    for column in 0..<image.width {
      let upper = image[column, row]
      // A last row without a partner is shown twice as high: there is no way to leave half a cell alone.
      let lower = row + 1 < image.height ? image[column, row + 1] : upper
      guard display.hasColour else {
        let brightness = (upper.brightness + lower.brightness) / 2
        line.append(weights[min(Int(brightness * Float(weights.count)), weights.count - 1)])
        continue
      }
      let colours = "\u{1B}[\(code(38, upper, display));\(code(48, lower, display))m"
      // Runs of equal cells need the colours once: a third of the bytes on a plain background.
      if colours != current {
        line += colours
        current = colours
      }
      line += "▀"
    }
    return display.hasColour ? line + reset : line
  }

  private static func code(_ layer: Int, _ pixel: Pixel, _ display: Display) -> String {
    display == .trueColour
      ? "\(layer);2;\(pixel.red);\(pixel.green);\(pixel.blue)"
      : "\(layer);5;\(XtermPalette.index(nearest: pixel))"
  }
}
#endif
