#if Demo
extension Image {
  /// Lays `light` over the picture as a second projector would: it only ever brightens.
  func screened(with light: Image, strength: Float) -> Image {
    precondition(light.width == width && light.height == height, "both pictures must have one size")
    return Image(width: width, height: height) { x, y in
      let below = self[x, y].colour
      return Pixel(1 - (1 - below) * (1 - light[x, y].colour * strength))
    }
  }

  /// Replaces each colour by the one that `gradient` has for its brightness: 0 keeps the picture, 1 replaces it wholly.
  func toned(_ gradient: [Pixel], strength: Float) -> Image {
    precondition(gradient.count >= 2, "a gradient needs two colours or more")
    return map { pixel in
      let place = pixel.brightness * Float(gradient.count - 1)
      let stop = min(max(Int(place), 0), gradient.count - 2)
      let start = gradient[stop].colour
      let tone = start + (gradient[stop + 1].colour - start) * (place - Float(stop))
      return Pixel(pixel.colour + (tone - pixel.colour) * strength)
    }
  }

  /// Darkens towards the corners, by `strength` in the very corner and not at all in the inner half.
  func vignetted(strength: Float) -> Image {
    // The distance of a corner from the middle is 1.
    let middle = SIMD2(Float(width - 1), Float(height - 1)) / 2
    return Image(width: width, height: height) { x, y in
      let offset = (SIMD2(Float(x), Float(y)) - middle) / SIMD2(max(middle.x, 1), max(middle.y, 1))
      let distance = ((offset * offset).sum() / 2).squareRoot()
      let edge = min(max((distance - 0.5) * 2, 0), 1)
      return Pixel(self[x, y].colour * (1 - strength * edge * edge * (3 - 2 * edge)))
    }
  }
}
#endif
