#if Demo
/// A point or size on a canvas: x from -1 to 1, left to right; y from -1 to 1, top to bottom.
typealias Point = SIMD2<Float>

/// Paints shapes given by their signed distance: negative inside, zero on the edge, so that edges can be smoothed.
struct Canvas {
  let side: Int
  private let points: [Point]
  private var colours: [SIMD3<Float>]

  init(side: Int, _ background: (Point) -> SIMD3<Float>) {
    self.side = side
    points = (0..<side * side).map { index in
      (Point(Float(index % side), Float(index / side)) + 0.5) * (2 / Float(side)) - 1
    }
    colours = points.map(background)
  }

  var image: Image { Image(width: side, height: side, pixels: colours.map { Pixel($0) }) }

  /// Lays `colour` over the inside of `shape`; `blur` is how far its edge fades, at least one pixel.
  mutating func fill(
    _ colour: SIMD3<Float>,
    opacity: Float = 1,
    blur: Float = 0,
    _ shape: (Point) -> Float
  ) {
    let edge = max(blur, 2 / Float(side))
    for index in colours.indices {
      let coverage = min(max(0.5 - shape(points[index]) / edge, 0), 1) * opacity
      if coverage > 0 { colours[index] += (colour - colours[index]) * coverage }
    }
  }
}

/// Signed distances; the ellipse's is an approximation that is exact on its edge.
enum Shape {
  static func ellipse(_ point: Point, at centre: Point, _ radii: Point) -> Float {
    let scaled = (point - centre) / radii
    let length = (scaled * scaled).sum().squareRoot()
    return (length - 1) * min(radii.x, radii.y)
  }

  static func box(_ point: Point, at centre: Point, _ half: Point, rounding: Float) -> Float {
    let offset = point - centre
    let outside = Point(abs(offset.x), abs(offset.y)) - half + rounding
    let corner = pointwiseMax(outside, .zero)
    return (corner * corner).sum().squareRoot() + min(max(outside.x, outside.y), 0) - rounding
  }

  /// A thick line with round ends.
  static func stroke(_ point: Point, from start: Point, to end: Point, width: Float) -> Float {
    let along = end - start
    let offset = point - start
    let place = min(max((offset * along).sum() / (along * along).sum(), 0), 1)
    let miss = offset - along * place
    return (miss * miss).sum().squareRoot() - width / 2
  }
}
#endif
