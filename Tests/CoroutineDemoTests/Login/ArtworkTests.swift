#if Demo
import Foundation
import Testing

@testable import CoroutineDemo

@Suite struct `The avatar and its effect` {
  @Test(arguments: Member.all.map(\.account.account))
  func `every member has a face of many colours that the effect changes visibly`(account: String) throws {
    let member = try #require(Member.named(account))
    let art = try Artwork(png: member.portrait.image(side: 64).pngData())
    #expect((art.before.width, art.before.height) == (64, 64))
    #expect((art.after.width, art.after.height) == (64, 64))
    #expect(Set(art.before.pixels.map(\.hex)).count > 100)
    let difference = zip(art.before.pixels, art.after.pixels).map { before, after in
      let channels = before.colour - after.colour
      return (channels * channels).sum().squareRoot()
    }
    #expect(difference.reduce(0, +) / Float(difference.count) > 0.2)
  }

  @Test func `the faces differ`() {
    #expect(Set(Member.all.map { $0.portrait.image(side: 32).checksum }).count == Member.all.count)
  }

  @Test func `dusk turns a plain white picture warm, and its corners dark`() {
    let dusk = Artwork.dusk(Image(width: 41, height: 41) { _, _ in Pixel(255, 255, 255) })
    #expect(dusk[20, 20] == Pixel(255, 233, 187))
    // A vignette of 0.7 leaves three tenths.
    #expect(dusk[0, 0] == Pixel(77, 70, 56))
  }

  @Test func `a picture too small for the effect is refused in words`() throws {
    let tiny = try Image(width: 7, height: 300) { _, _ in Pixel(1, 2, 3) }.pngData()
    #expect(throws: EffectError(description: "a picture of 7 x 300 pixels is too small for it; 8 x 8 is the least")) {
      try Artwork(png: tiny)
    }
  }
}
#endif
