#if Demo
/// One pixel, 8 bits a channel, sRGB.
struct Pixel: Equatable, Sendable {
  var red: UInt8
  var green: UInt8
  var blue: UInt8

  init(_ red: UInt8, _ green: UInt8, _ blue: UInt8) {
    self.red = red
    self.green = green
    self.blue = blue
  }

  /// Rounds to the nearest level; what is outside 0…1 becomes the nearest end.
  init(_ colour: SIMD3<Float>) {
    let levels = (colour * 255).rounded(.toNearestOrAwayFromZero).clamped(
      lowerBound: .zero,
      upperBound: .init(repeating: 255)
    )
    self.init(UInt8(levels.x), UInt8(levels.y), UInt8(levels.z))
  }

  /// The channels from 0 to 1.
  var colour: SIMD3<Float> { SIMD3(Float(red), Float(green), Float(blue)) / 255 }

  /// How bright the eye finds it, 0 to 1, by the weights of ITU-R BT.709.
  var brightness: Float { (colour * SIMD3(0.2126, 0.7152, 0.0722)).sum() }

  var hex: String {
    "#" + [red, green, blue].map { String($0 >> 4, radix: 16) + String($0 & 15, radix: 16) }.joined()
  }
}

/// A picture in memory, row by row from the top left.
///
/// Invariant: `pixels.count == width * height`, both at least 1.
struct Image: Equatable, Sendable {
  let width: Int
  let height: Int
  private(set) var pixels: [Pixel]

  init(width: Int, height: Int, pixels: [Pixel]) {
    precondition(width > 0 && height > 0 && pixels.count == width * height, "an image needs width * height pixels")
    self.width = width
    self.height = height
    self.pixels = pixels
  }

  /// Paints a picture by asking for each pixel's colour.
  init(width: Int, height: Int, _ colour: (_ x: Int, _ y: Int) -> Pixel) {
    var pixels: [Pixel] = []
    pixels.reserveCapacity(width * height)
    for y in 0..<height {
      for x in 0..<width {
        pixels.append(colour(x, y))
      }
    }
    self.init(width: width, height: height, pixels: pixels)
  }

  subscript(x: Int, y: Int) -> Pixel { pixels[y * width + x] }

  /// The same picture with every pixel replaced.
  func map(_ transform: (Pixel) -> Pixel) -> Image {
    Image(width: width, height: height, pixels: pixels.map(transform))
  }

  /// Rows become columns.
  var transposed: Image {
    Image(width: height, height: width) { x, y in self[y, x] }
  }
}
#endif
