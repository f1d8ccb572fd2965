#if Demo
import Testing

@testable import CoroutineDemo

@Suite struct `Pixels and filters` {
  private let black = Pixel(0, 0, 0)
  private let white = Pixel(255, 255, 255)

  @Test func `a box blur of radius 1 is the mean of three neighbours with the edges repeated`() {
    let image = Image(width: 5, height: 1, pixels: [0, 0, 90, 0, 30].map { Pixel($0, 0, 0) })
    #expect(image.rowsBoxBlurred(radius: 1).pixels.map(\.red) == [0, 30, 30, 40, 20])
  }

  @Test func `a blur of radius 0 changes nothing`() {
    let image = Image(width: 3, height: 2) { x, y in Pixel(UInt8(x * 80), UInt8(y * 200), 7) }
    #expect(image.blurred(radius: 0) == image)
  }

  @Test func `a blur leaves a plain picture alone, whatever its radius`() {
    let image = Image(width: 7, height: 4) { _, _ in Pixel(200, 3, 77) }
    #expect(image.blurred(radius: 9) == image)
  }

  @Test func `a blurred point spreads alike in all four directions and keeps its light`() {
    let image = Image(width: 21, height: 21) { x, y in x == 10 && y == 10 ? Pixel(255, 0, 0) : black }
    let blurred = image.blurred(radius: 1)
    #expect(blurred == blurred.transposed)
    for offset in 1...4 {
      #expect(blurred[10 - offset, 10] == blurred[10 + offset, 10])
      #expect(blurred[10, 10 - offset].red <= blurred[10, 11 - offset].red)
    }
    let light = blurred.pixels.map { Int($0.red) }.reduce(0, +)
    #expect((235...275).contains(light), "255 came in, \(light) came out")
  }

  @Test func `toning maps black, grey and white to the gradient's stops`() {
    let gradient = [Pixel(10, 20, 30), Pixel(100, 0, 200), Pixel(255, 250, 240)]
    let image = Image(width: 2, height: 1, pixels: [black, white])
    #expect(image.toned(gradient, strength: 1).pixels == [gradient[0], gradient[2]])
    let grey = Image(width: 1, height: 1, pixels: [Pixel(SIMD3(repeating: 0.5))]).toned(gradient, strength: 1)
    #expect(grey.pixels == [Pixel(101, 1, 200)])
    #expect(image.toned(gradient, strength: 0) == image)
  }

  @Test func `screening with black changes nothing and with white gives white`() {
    let image = Image(width: 2, height: 1, pixels: [Pixel(9, 100, 200), black])
    #expect(image.screened(with: image.map { _ in black }, strength: 1) == image)
    #expect(image.screened(with: image.map { _ in white }, strength: 1).pixels == [white, white])
  }

  @Test func `a vignette spares the middle and darkens the corners by its strength`() {
    let image = Image(width: 9, height: 9) { _, _ in Pixel(200, 200, 200) }
    let dark = image.vignetted(strength: 0.5)
    #expect(dark[4, 4] == Pixel(200, 200, 200))
    #expect([dark[0, 0], dark[8, 0], dark[0, 8], dark[8, 8]] == [Pixel](repeating: Pixel(100, 100, 100), count: 4))
  }

  @Test func `halving a picture takes the mean of each four pixels`() {
    let image = Image(width: 4, height: 2, pixels: [0, 20, 100, 100, 40, 60, 100, 200].map { Pixel($0, 0, 0) })
    #expect(image.scaled(toWidth: 2, height: 1).pixels.map(\.red) == [30, 125])
  }

  @Test func `growing a picture repeats its pixels`() {
    let image = Image(width: 2, height: 1, pixels: [black, white])
    #expect(image.scaled(toWidth: 4, height: 2).pixels == [black, black, white, white, black, black, white, white])
  }

  @Test func `the mean colour is rounded to the nearest`() {
    let image = Image(width: 2, height: 1, pixels: [Pixel(0, 10, 255), Pixel(1, 13, 255)])
    #expect(image.meanColour == Pixel(1, 12, 255))
    #expect(Pixel(0, 171, 16).hex == "#00ab10")
  }

  @Test func `the checksum tells pictures apart by colour and by shape`() {
    let row = Image(width: 2, height: 1, pixels: [black, white])
    let column = Image(width: 1, height: 2, pixels: [black, white])
    #expect(Set([row.checksum, column.checksum, row.map { _ in black }.checksum]).count == 3)
    // FNV-1a of the bytes 1 0 0 0, 1 0 0 0, 0 0 0.
    #expect(Image(width: 1, height: 1, pixels: [black]).checksum == "5d1ee66e34429d67")
  }
}
#endif
