import Glibc

/// Draws the picture of SocketsAndServers.md: how long clients have waited, without and with a rule for load.
enum Picture {
  struct Dot: Sendable {
    let at: Duration
    let waited: Duration
    let isServed: Bool
  }

  private static let (width, height) = (300.0, 220.0)

  static func draw(_ without: [Dot], _ with: [Dot]) -> String {
    """
    <?xml version="1.0" encoding="utf-8"?>
    <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 330" font-family="sans-serif" font-size="12">
    <rect width="740" height="330" fill="#ffffff"/>
    \(panel(at: 55, "without a rule", without))
    \(panel(at: 420, "with LoadShedding(target: 20 ms)", with))
    <g fill="none" stroke-linecap="round" stroke-width="4">
    <path d="M 60 318 h 0" stroke="\(served)"/><path d="M 160 318 h 0" stroke="\(refused)"/></g>
    <text x="68" y="322">served</text><text x="168" y="322">refused at once, or with its turn</text>
    </svg>

    """
  }

  private static var served: String { "#1864ab" }
  private static var refused: String { "#d9480f" }

  private static func panel(at left: Double, _ title: String, _ dots: [Dot]) -> String {
    func path(_ isServed: Bool) -> String {
      dots.filter { $0.isServed == isServed }
        .map { "M \(number($0.at / .seconds(2) * width)) \(number(height - $0.waited / .seconds(2.2) * height)) h 0" }
        .joined(separator: " ")
    }
    var axes = ""
    for second in 0...2 {
      let x = Double(second) / 2 * width
      let y = height - Double(second) / 2.2 * height
      axes += "<path d=\"M 0 \(number(y)) H \(number(width))\" stroke=\"#dee2e6\"/>"
      axes += "<text x=\"-8\" y=\"\(number(y + 4))\" text-anchor=\"end\">\(second) s</text>"
      axes += "<text x=\"\(number(x))\" y=\"\(number(height + 17))\" text-anchor=\"middle\">\(second) s</text>\n"
    }
    let count = dots.filter(\.isServed).count
    return """
      <g transform="translate(\(left) 45)">
      <text x="0" y="-24" font-weight="bold">\(title)</text>
      <text x="0" y="-8">\(count) of \(dots.count) clients served</text>
      \(axes)<text x="\(number(width / 2))" y="\(number(height + 35))" text-anchor="middle">time of the connection</text>
      <g fill="none" stroke-linecap="round" stroke-width="3">
      <path d="\(path(true))" stroke="\(served)"/>
      <path d="\(path(false))" stroke="\(refused)"/></g></g>
      """
  }

  private static func number(_ value: Double) -> String { "\((value * 10).rounded() / 10)" }
}
