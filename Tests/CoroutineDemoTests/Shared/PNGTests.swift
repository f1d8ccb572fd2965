#if Demo
import Foundation
import Testing

@testable import CoroutineDemo

@Suite struct `PNG files` {
  @Test(arguments: [(1, 1), (3, 2), (160, 160)])
  func `what is written is read back pixel by pixel`(width: Int, height: Int) throws {
    let image = Image(width: width, height: height) { x, y in
      Pixel(UInt8(x * 7 & 255), UInt8(y * 13 & 255), UInt8(x * y & 255))
    }
    #expect(try Image(png: image.pngData()) == image)
  }

  @Test func `noise, which does not compress, is read back as well`() throws {
    var random = SplitMix(state: 7)
    let image = Image(width: 257, height: 129) { _, _ in
      let bits = random.next()
      return Pixel(UInt8(bits & 255), UInt8(bits >> 8 & 255), UInt8(bits >> 16 & 255))
    }
    #expect(try Image(png: image.pngData()) == image)
  }

  @Test func `a grey PNG with transparency, made by another program, is laid on white`() throws {
    // 2 x 1, grey and alpha: black opaque, black transparent.
    let file = try #require(
      Data(
        base64Encoded: """
          iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAQAAABeK7cBAAAADUlEQVR4nGNg+M/AAAADAgEAmZs7lAAAAABJRU5ErkJggg==
          """
      )
    )
    #expect(try Image(png: file).pixels == [Pixel(0, 0, 0), Pixel(255, 255, 255)])
  }

  @Test func `a file that is no PNG is refused in words`() {
    #expect {
      try Image(png: Data("<html>".utf8))
    } throws: { "\($0)".hasPrefix("this is no readable PNG: ") }
  }

  @Test func `an empty file is refused in words`() {
    #expect {
      try Image(png: Data())
    } throws: { "\($0)".hasPrefix("this is no readable PNG: ") }
  }

  @Test func `a file that breaks off is refused in words`() throws {
    let file = try Image(width: 64, height: 64) { x, y in Pixel(UInt8(x), UInt8(y), UInt8(x ^ y)) }.pngData()
    #expect {
      try Image(png: file.prefix(file.count / 2))
    } throws: { "\($0)".hasPrefix("the PNG is damaged: ") }
  }

  @Test func `a file that claims too many pixels is refused before they are allocated`() throws {
    let small = try Image(width: 1, height: 1, pixels: [Pixel(1, 2, 3)]).pngData()
    // The header chunk: length, type, width, height, five bytes, and the checksum over type to the fifth byte.
    var header = Data("IHDR".utf8) + Data([0, 0, 0x80, 0, 0, 0, 0x80, 0]) + small[24..<29]
    header += withUnsafeBytes(of: crc32(header).bigEndian) { Data($0) }
    let file = small[..<12] + header + small[33...]
    #expect {
      try Image(png: Data(file))
    } throws: { "\($0)".contains("32768 x 32768 pixels") }
  }

  /// PNG's checksum, bit by bit.
  private func crc32(_ data: Data) -> UInt32 {
    var crc = UInt32.max
    for byte in data {
      crc ^= UInt32(byte)
      for _ in 0..<8 { crc = crc & 1 == 1 ? crc >> 1 ^ 0xedb8_8320 : crc >> 1 }
    }
    return ~crc
  }
}

/// Random numbers that are the same in every run.
private struct SplitMix: RandomNumberGenerator {
  var state: UInt64

  mutating func next() -> UInt64 {
    state &+= 0x9e37_79b9_7f4a_7c15
    var bits = (state ^ state >> 30) &* 0xbf58_476d_1ce4_e5b9
    bits = (bits ^ bits >> 27) &* 0x94d0_49bb_1331_11eb
    return bits ^ bits >> 31
  }
}
#endif
