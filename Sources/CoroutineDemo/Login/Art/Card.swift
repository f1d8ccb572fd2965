#if Demo
/// The result of a login: pictures and a line on a terminal, text for everything else.
struct Card: Sendable {
  var profile: Profile
  var art: Artwork

  func text(on display: Display, columns: Int, rows: Int) -> String {
    switch display {
    case .text: words
    case .trueColour, .palette, .shades:
      "\n" + (picture(on: display, columns: columns, rows: rows)).joined(separator: "\n") + "\n\n"
    }
  }

  private var words: String {
    """
    name     \(profile.name), \(profile.title)
    account  \(profile.account)
    avatar   \(facts(art.before)), PNG of \(art.fileSize) bytes
    effect   \(facts(art.after)), dusk

    """
  }

  private func facts(_ image: Image) -> String {
    "\(image.width) x \(image.height), mean colour \(image.meanColour.hex), checksum \(image.checksum)"
  }

  private func picture(on display: Display, columns: Int, rows: Int) -> [String] {
    let pair = SideBySide(left: (art.before, "before"), right: (art.after, "after: dusk"))
    let line = "\(profile.name), \(profile.title)"
    return pair.lines(columns: columns, rows: rows, on: display)
      + ["", String(repeating: " ", count: SideBySide.margin) + line.prefix(max(columns - SideBySide.margin, 0))]
  }
}
#endif
