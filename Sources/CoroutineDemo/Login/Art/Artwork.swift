#if Demo
import Foundation

/// Why a picture gets no effect.
struct EffectError: Error, Equatable, CustomStringConvertible {
  var description: String
}

/// An avatar before and after the effect "dusk": a glow, the colours of a late evening, and dark corners.
///
/// Making one is work for the processor alone, about a tenth of a second: run it through `co_blocking`.
struct Artwork: Sendable {
  static let smallestSide = 8
  /// From night to the last light.
  static let dusk = [
    Pixel(20, 12, 56), Pixel(92, 24, 104), Pixel(198, 60, 104), Pixel(244, 140, 90), Pixel(255, 228, 170),
  ]

  /// How many bytes the picture came in.
  let fileSize: Int
  let before: Image
  let after: Image

  init(png file: Data) throws {
    fileSize = file.count
    before = try Image(png: file)
    guard min(before.width, before.height) >= Self.smallestSide else {
      throw EffectError(
        description: "a picture of \(before.width) x \(before.height) pixels is too small for it; "
          + "\(Self.smallestSide) x \(Self.smallestSide) is the least"
      )
    }
    after = Self.dusk(before)
  }

  static func dusk(_ image: Image) -> Image {
    let glow = image.blurred(radius: max(1, min(image.width, image.height) / 40))
    return image.screened(with: glow, strength: 0.35).toned(dusk, strength: 0.8).vignetted(strength: 0.7)
  }
}
#endif
