#if Demo
/// What an output can show, best first.
///
/// | environment                                  | display      |
/// |----------------------------------------------|--------------|
/// | no terminal, or TERM is unset or `dumb`      | `text`       |
/// | NO_COLOR is set to anything but nothing      | `shades`     |
/// | COLORTERM is `truecolor` or `24bit`          | `trueColour` |
/// | any other terminal                           | `palette`    |
enum Display: Equatable, Sendable {
  /// 24 bits a pixel.
  case trueColour
  /// The 240 fixed colours of xterm's 256.
  case palette
  /// A terminal whose owner wants no colours: characters of different weight.
  case shades
  /// A pipe, a file, or a terminal that cannot move its cursor: words alone.
  case text

  init(isTerminal: Bool, environment: [String: String]) {
    if !isTerminal || ["", "dumb"].contains(environment["TERM", default: ""]) {
      self = .text
    } else if !environment["NO_COLOR", default: ""].isEmpty {
      self = .shades
    } else if ["truecolor", "24bit"].contains(environment["COLORTERM", default: ""].lowercased()) {
      self = .trueColour
    } else {
      self = .palette
    }
  }

  /// Whether letters may be coloured.
  var hasColour: Bool { self == .trueColour || self == .palette }
}
#endif
