#if Demo
/// A face drawn from a few colours and a hairstyle: what the avatars are made of.
struct Portrait: Sendable {
  enum Hairstyle: Sendable {
    case bun
    case bob
    case parted
  }

  /// Colours as 0xRRGGBB; the sky from top to bottom.
  var skin: UInt32
  var hair: UInt32
  var clothes: UInt32
  var sky: (UInt32, UInt32)
  var hairstyle: Hairstyle

  func image(side: Int) -> Image {
    let top = Self.colour(sky.0)
    let bottom = Self.colour(sky.1)
    var canvas = Canvas(side: side) { point in top + (bottom - top) * ((point.y + 1) / 2) }
    canvas.fill(bottom + 0.08, opacity: 0.9, blur: 0.02) { Shape.ellipse($0, at: [0.42, -0.42], [0.5, 0.5]) }
    hairBehind(&canvas)
    body(&canvas)
    head(&canvas)
    face(&canvas)
    hairInFront(&canvas)
    return canvas.image
  }

  private func body(_ canvas: inout Canvas) {
    let cloth = Self.colour(clothes)
    let shadow = Self.colour(skin) * 0.82
    canvas.fill(cloth) { Shape.ellipse($0, at: [0, 1.12], [0.86, 0.66]) }
    canvas.fill(cloth * 1.25, opacity: 0.6, blur: 0.3) { Shape.ellipse($0, at: [-0.35, 1.0], [0.3, 0.35]) }
    canvas.fill(shadow) { Shape.box($0, at: [0, 0.42], [0.17, 0.26], rounding: 0.12) }
    canvas.fill(shadow) { Shape.ellipse($0, at: [0, 0.62], [0.22, 0.13]) }
    // The collar.
    canvas.fill([0.96, 0.95, 0.92]) { Shape.stroke($0, from: [-0.25, 0.5], to: [-0.02, 0.76], width: 0.1) }
    canvas.fill([0.96, 0.95, 0.92]) { Shape.stroke($0, from: [0.25, 0.5], to: [0.02, 0.76], width: 0.1) }
  }

  private func head(_ canvas: inout Canvas) {
    let skin = Self.colour(skin)
    for side: Float in [-1, 1] {
      canvas.fill(skin * 0.9) { Shape.ellipse($0, at: [side * 0.43, -0.04], [0.08, 0.12]) }
    }
    canvas.fill(skin) { Shape.ellipse($0, at: [0, -0.06], [0.43, 0.54]) }
    // Light comes from the upper right, as the sun does.
    canvas.fill(skin * 0.84, opacity: 0.55, blur: 0.3) { point in
      max(
        Shape.ellipse(point, at: [0, -0.06], [0.42, 0.53]),
        -Shape.ellipse(point, at: [0.16, -0.14], [0.44, 0.56])
      )
    }
    for side: Float in [-1, 1] {
      canvas.fill([0.93, 0.45, 0.4], opacity: 0.3, blur: 0.16) {
        Shape.ellipse($0, at: [side * 0.25, 0.12], [0.11, 0.08])
      }
    }
  }

  private func face(_ canvas: inout Canvas) {
    let dark = Self.colour(hair) * 0.55
    let skin = Self.colour(skin)
    for side: Float in [-1, 1] {
      canvas.fill([0.98, 0.97, 0.95]) { Shape.ellipse($0, at: [side * 0.17, -0.08], [0.085, 0.055]) }
      canvas.fill([0.2, 0.27, 0.32]) { Shape.ellipse($0, at: [side * 0.17, -0.075], [0.047, 0.05]) }
      canvas.fill([0.03, 0.03, 0.05]) { Shape.ellipse($0, at: [side * 0.17, -0.075], [0.024, 0.026]) }
      canvas.fill([1, 1, 1]) { Shape.ellipse($0, at: [side * 0.17 + 0.02, -0.095], [0.014, 0.014]) }
      canvas.fill(dark, opacity: 0.85) {
        Shape.stroke($0, from: [side * 0.09, -0.2], to: [side * 0.26, -0.22], width: 0.036)
      }
    }
    canvas.fill(skin * 0.78, opacity: 0.8, blur: 0.03) {
      Shape.stroke($0, from: [-0.012, -0.02], to: [-0.035, 0.12], width: 0.02)
    }
    canvas.fill(skin * 0.78, opacity: 0.8, blur: 0.03) { Shape.ellipse($0, at: [0, 0.135], [0.055, 0.02]) }
    // A smile: the lower part of an ellipse.
    canvas.fill([0.72, 0.25, 0.26]) { point in
      max(
        abs(Shape.ellipse(point, at: [0, 0.22], [0.15, 0.085])) - 0.014,
        0.235 - point.y
      )
    }
  }

  private func hairBehind(_ canvas: inout Canvas) {
    let hair = Self.colour(hair)
    switch hairstyle {
    case .bun:
      canvas.fill(hair * 0.9) { Shape.ellipse($0, at: [0.02, -0.72], [0.22, 0.2]) }
      canvas.fill(hair * 0.8) { Shape.ellipse($0, at: [0, -0.12], [0.49, 0.56]) }
    case .bob:
      canvas.fill(hair * 0.8) { Shape.box($0, at: [0, -0.02], [0.54, 0.56], rounding: 0.34) }
    case .parted:
      canvas.fill(hair * 0.8) { Shape.ellipse($0, at: [0, -0.24], [0.46, 0.46]) }
    }
  }

  private func hairInFront(_ canvas: inout Canvas) {
    let hair = Self.colour(hair)
    // A cap over the head, cut off along a curve above the brows.
    let cut: Point = hairstyle == .parted ? [0.1, 0.1] : [0, 0.14]
    canvas.fill(hair) { point in
      max(
        Shape.ellipse(point, at: [0, -0.18], [0.48, 0.48]),
        -Shape.ellipse(point, at: cut, hairstyle == .bob ? [0.37, 0.44] : [0.42, 0.5])
      )
    }
    canvas.fill(hair * 1.5 + 0.06, opacity: 0.55, blur: 0.12) {
      Shape.stroke($0, from: [0.08, -0.56], to: [0.3, -0.44], width: 0.05)
    }
  }

  private static func colour(_ hex: UInt32) -> SIMD3<Float> {
    SIMD3(Float(hex >> 16 & 255), Float(hex >> 8 & 255), Float(hex & 255)) / 255
  }
}
#endif
