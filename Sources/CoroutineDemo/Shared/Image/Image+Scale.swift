#if Demo
extension Image {
  /// The picture at another size, each pixel the mean of the area that it covers; growing repeats pixels.
  func scaled(toWidth newWidth: Int, height newHeight: Int) -> Image {
    precondition(newWidth > 0 && newHeight > 0, "an image cannot be scaled to nothing")
    return Image(width: newWidth, height: newHeight) { x, y in
      let columns = Self.span(of: x, in: newWidth, from: width)
      let rows = Self.span(of: y, in: newHeight, from: height)
      var sum = SIMD3<Float>.zero
      for row in rows {
        for column in columns { sum += self[column, row].colour }
      }
      return Pixel(sum / Float(rows.count * columns.count))
    }
  }

  /// Which of `size` source positions the new position covers: at least one, none left out.
  private static func span(of position: Int, in newSize: Int, from size: Int) -> Range<Int> {
    let start = position * size / newSize
    return start..<max(start + 1, (position + 1) * size / newSize)
  }
}
#endif
