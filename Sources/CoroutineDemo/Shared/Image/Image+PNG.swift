#if Demo
import CPNG
import Foundation

/// Why a PNG could not be read or written, in libpng's words where it has any.
struct PNGError: Error, Equatable, CustomStringConvertible {
  var description: String
}

extension Image {
  /// The most pixels that are decoded: a file of a few kilobytes can claim to hold gigabytes of them.
  static let largestDecoded = 16_777_216

  /// Decodes a PNG of any colour type; what is transparent is laid on white.
  init(png data: Data) throws(PNGError) {
    var png = png_image()
    png.version = png_uint_32(PNG_IMAGE_VERSION)
    // Frees what libpng holds between the two calls; after a complete read it does nothing.
    defer { png_image_free(&png) }

    let opened = data.withUnsafeBytes { png_image_begin_read_from_memory(&png, $0.baseAddress, $0.count) }
    guard opened != 0 else { throw PNGError(description: "this is no readable PNG: \(png.messageText)") }
    let width = Int(png.width)
    let height = Int(png.height)
    guard width * height <= Self.largestDecoded else {
      throw PNGError(
        description: "the PNG has \(width) x \(height) pixels; more than \(Self.largestDecoded) are not decoded"
      )
    }

    png.format = png_uint_32(PNG_FORMAT_FLAG_COLOR)
    var white = png_color(red: 255, green: 255, blue: 255)
    var pixels = [Pixel](repeating: Pixel(0, 0, 0), count: width * height)
    let read = pixels.withUnsafeMutableBytes { png_image_finish_read(&png, &white, $0.baseAddress, 0, nil) }
    guard read != 0 else { throw PNGError(description: "the PNG is damaged: \(png.messageText)") }
    self.init(width: width, height: height, pixels: pixels)
  }

  /// The picture as a PNG file, 8 bits a channel, sRGB.
  func pngData() throws(PNGError) -> Data {
    var png = png_image()
    png.version = png_uint_32(PNG_IMAGE_VERSION)
    png.width = png_uint_32(width)
    png.height = png_uint_32(height)
    png.format = png_uint_32(PNG_FORMAT_FLAG_COLOR)
    defer { png_image_free(&png) }

    // No PNG of these pixels is longer: each row is stored with one filter byte, deflate's stored blocks add 5 bytes
    // for each 16 KiB, and the chunks around them stay far below the kilobyte. libpng checks the size as it writes.
    let stored = (3 * width + 1) * height
    var size = png_alloc_size_t(stored + stored / 1000 + 1024)
    var file = Data(count: Int(size))
    let written = pixels.withUnsafeBytes { pixels in
      file.withUnsafeMutableBytes { file in
        png_image_write_to_memory(&png, file.baseAddress, &size, 0, pixels.baseAddress, 0, nil)
      }
    }
    guard written != 0 else { throw PNGError(description: "the picture cannot be written as PNG: \(png.messageText)") }
    return file.prefix(Int(size))
  }
}

extension png_image {
  /// libpng's own words: a C string in an array of 64 characters, empty where it said nothing.
  fileprivate var messageText: String {
    withUnsafeBytes(of: message) { bytes in
      let text = String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self)
      return text.isEmpty ? "no reason given" : text
    }
  }
}
#endif
