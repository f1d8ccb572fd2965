#if Demo
/// xterm's 256 colours without the first 16, which every user sets differently: a 6x6x6 cube, then 24 greys.
enum XtermPalette {
  private static let levels = [0, 95, 135, 175, 215, 255]

  /// The number of the colour nearest to `pixel`.
  static func index(nearest pixel: Pixel) -> Int {
    let wanted = [Int(pixel.red), Int(pixel.green), Int(pixel.blue)]
    let steps = wanted.map(nearestLevel)
    let cube = steps.map { levels[$0] }
    let grey = min(max((wanted.reduce(0, +) / 3 - 8 + 5) / 10, 0), 23)
    let greys = [Int](repeating: 8 + 10 * grey, count: 3)
    if distance(greys, wanted) < distance(cube, wanted) {
      return 232 + grey
    }
    return 16 + 36 * steps[0] + 6 * steps[1] + steps[2]
  }

  private static func nearestLevel(_ value: Int) -> Int {
    var best = 0
    for (index, level) in levels.enumerated() where abs(level - value) < abs(levels[best] - value) {
      best = index
    }
    return best
  }

  private static func distance(_ first: [Int], _ second: [Int]) -> Int {
    zip(first, second).map { ($0 - $1) * ($0 - $1) }.reduce(0, +)
  }
}
#endif
