#if Demo
import Testing

@testable import CoroutineDemo

@Suite struct `Pictures on a terminal` {
  private let image = Image(
    width: 2,
    height: 2,
    pixels: [Pixel(255, 0, 0), Pixel(0, 255, 0), Pixel(0, 0, 255), Pixel(255, 255, 255)]
  )

  @Test func `two rows of pixels become one line of half blocks in 24 bits`() {
    #expect(
      HalfBlocks.lines(image, on: .trueColour) == [
        "\u{1B}[38;2;255;0;0;48;2;0;0;255m▀\u{1B}[38;2;0;255;0;48;2;255;255;255m▀\u{1B}[0m"
      ]
    )
  }

  @Test func `the same in 256 colours`() {
    #expect(
      HalfBlocks.lines(image, on: .palette) == ["\u{1B}[38;5;196;48;5;21m▀\u{1B}[38;5;46;48;5;231m▀\u{1B}[0m"]
    )
  }

  @Test func `without colours brightness becomes weight`() {
    let image = Image(width: 3, height: 2) { x, _ in Pixel(SIMD3(repeating: Float(x) / 2)) }
    #expect(HalfBlocks.lines(image, on: .shades) == [" +@"])
  }

  @Test func `equal neighbours share one colour code`() {
    let plain = image.map { _ in Pixel(1, 2, 3) }
    #expect(HalfBlocks.lines(plain, on: .trueColour) == ["\u{1B}[38;2;1;2;3;48;2;1;2;3m▀▀\u{1B}[0m"])
  }

  @Test func `an odd last row is shown at full height`() {
    let image = Image(width: 1, height: 3) { _, y in Pixel(UInt8(y), 0, 0) }
    #expect(HalfBlocks.lines(image, on: .trueColour).last == "\u{1B}[38;2;2;0;0;48;2;2;0;0m▀\u{1B}[0m")
  }

  @Test(arguments: [
    (Pixel(0, 0, 0), 16), (Pixel(255, 255, 255), 231), (Pixel(128, 128, 128), 244), (Pixel(95, 135, 175), 67),
    (Pixel(9, 9, 9), 232), (Pixel(250, 10, 10), 196),
  ])
  func `each colour finds its nearest of the 256`(pixel: Pixel, index: Int) {
    #expect(XtermPalette.index(nearest: pixel) == index)
  }

  @Test(arguments: [
    (false, ["TERM": "xterm", "COLORTERM": "truecolor"], Display.text),
    (true, ["TERM": "dumb", "COLORTERM": "truecolor"], .text),
    (true, [:], .text),
    (true, ["TERM": "xterm", "COLORTERM": "truecolor"], .trueColour),
    (true, ["TERM": "xterm", "COLORTERM": "24bit"], .trueColour),
    (true, ["TERM": "xterm-256color"], .palette),
    (true, ["TERM": "xterm", "COLORTERM": "truecolor", "NO_COLOR": "1"], .shades),
    (true, ["TERM": "xterm", "COLORTERM": "truecolor", "NO_COLOR": ""], .trueColour),
  ])
  func `the environment decides what is shown`(isTerminal: Bool, environment: [String: String], display: Display) {
    #expect(Display(isTerminal: isTerminal, environment: environment) == display)
  }

  @Test(arguments: [20, 40, 80, 133, 300])
  func `two pictures side by side never exceed the terminal`(columns: Int) {
    let picture = Image(width: 160, height: 160) { x, _ in Pixel(UInt8(x), 0, 0) }
    let pair = SideBySide(left: (picture, "before"), right: (picture, "a caption that is far too long for a picture"))
    let lines = pair.lines(columns: columns, rows: 50, on: .shades)
    #expect(lines.allSatisfy { $0.count <= columns })
    #expect(Set(lines.map(\.count)).count == 1, "all lines are of one length")
  }

  @Test func `a picture keeps its proportions and fits the rows too`() {
    let tall = Image(width: 50, height: 100) { _, _ in Pixel(0, 0, 0) }
    let size = SideBySide.fit(tall, columns: 200, rows: 28)
    #expect(size == (20, 40))
  }
}
#endif
