#if Demo
extension Image {
  /// A soft blur: three box blurs in a row, which come within a few percent of a Gaussian.
  ///
  /// A box blur by running sums costs the same for every radius; a Gaussian's cost grows with it.
  func blurred(radius: Int) -> Image {
    var image = self
    for _ in 0..<3 {
      image = image.rowsBoxBlurred(radius: radius).transposed.rowsBoxBlurred(radius: radius).transposed
    }
    return image
  }

  /// Each pixel becomes the mean of the `2 * radius + 1` pixels around it in its row; the edges are repeated outwards.
  func rowsBoxBlurred(radius: Int) -> Image {
    precondition(radius >= 0, "a blur has no negative radius")
    let count = 2 * radius + 1
    var blurred: [Pixel] = []
    blurred.reserveCapacity(pixels.count)
    for row in 0..<height {
      let first = row * width
      func at(_ column: Int) -> SIMD3<Int32> {
        let pixel = pixels[first + min(max(column, 0), width - 1)]
        return SIMD3(Int32(pixel.red), Int32(pixel.green), Int32(pixel.blue))
      }
      var sum = SIMD3<Int32>.zero
      for column in -radius...radius { sum &+= at(column) }
      for column in 0..<width {
        let mean = (sum &+ Int32(count / 2)) / Int32(count)
        blurred.append(Pixel(UInt8(mean.x), UInt8(mean.y), UInt8(mean.z)))
        sum &+= at(column + radius + 1) &- at(column - radius)
      }
    }
    return Image(width: width, height: height, pixels: blurred)
  }
}
#endif
