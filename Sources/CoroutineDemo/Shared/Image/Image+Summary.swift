#if Demo
/// What can be said about a picture in words, for readers that cannot show one.
extension Image {
  var meanColour: Pixel {
    var red = 0
    var green = 0
    var blue = 0
    for pixel in pixels {
      red += Int(pixel.red)
      green += Int(pixel.green)
      blue += Int(pixel.blue)
    }
    let half = pixels.count / 2
    let mean = [red, green, blue].map { UInt8(($0 + half) / pixels.count) }
    return Pixel(mean[0], mean[1], mean[2])
  }

  /// FNV-1a over the size and all channels, 16 hexadecimal digits: equal pictures have equal checksums on every
  /// machine.
  var checksum: String {
    var hash: UInt64 = 0xcbf2_9ce4_8422_2325
    func add(_ byte: UInt8) {
      hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3
    }
    for size in [width, height] {
      for shift in stride(from: 0, to: 32, by: 8) { add(UInt8(truncatingIfNeeded: size >> shift)) }
    }
    for pixel in pixels {
      add(pixel.red)
      add(pixel.green)
      add(pixel.blue)
    }
    let digits = String(hash, radix: 16)
    return String(repeating: "0", count: 16 - digits.count) + digits
  }
}
#endif
