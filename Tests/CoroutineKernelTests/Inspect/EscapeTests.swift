import CCoroutineRuntime
import Testing

@testable import Coroutine

/// What users have named, in every text of the library.
@Suite("A text of the user's in a line of the library", .timeLimit(.minutes(10)))
struct EscapeTests {
  @Test func `is escaped as in a literal`() {
    #expect(Hostile.text.asName == Hostile.name)
    #expect(Hostile.text.asWord == Hostile.line)
    #expect(asLine(Hostile.Failure()) == Hostile.line)
    #expect("".asName.isEmpty)
  }

  @Test func `is otherwise as it was`() {
    for plain in ["checkout", "Grüße, 世界 👩‍👩‍👧", "[]{}<>'`$;", "e\u{301}", "\u{A0}\u{10FFFF}"] {
      #expect(plain.asName == plain)
      #expect(plain.asLine == plain)
    }
  }

  @Test func `is escaped once, however often it passes`() {
    #expect(Hostile.name.asLine == Hostile.name)
    #expect(Hostile.line.asLine.asWord == Hostile.line)
  }

  @Test func `is cut between two characters if it is huge`() {
    for length in 190...210 {
      let name = String(repeating: "x", count: length).asName
      #expect(
        name == (length <= 200 ? String(repeating: "x", count: length) : String(repeating: "x", count: 197) + "…")
      )
    }
    for huge in ["\u{1B}", "é", "世", "🙂", "\\", "a\n"].map({ String(repeating: $0, count: 100_000) }) {
      let name = huge.asName
      #expect(name.utf8.count <= 200 && name.utf8.count > 200 - 3 - 8)
      #expect(name.hasSuffix("…") && Hostile.isHarmless(name))
      #expect(!name.unicodeScalars.contains("\u{FFFD}"))
      #expect(huge.asLine.utf8.count <= 16 << 10)
    }
  }

  @Test(
    arguments: [
      ([0xFF], #"\xFF"#), ([0x80], #"\x80"#), ([0xC3], #"\xC3"#), ([0xC0, 0x8A], #"\xC0\x8A"#),
      ([0x41, 0xE2, 0x80], #"A\xE2\x80"#),
      ([0xED, 0xA0, 0x80], #"\xED\xA0\x80"#), ([0xF4, 0x90, 0x80, 0x80], #"\xF4\x90\x80\x80"#),
      ([0xE2, 0x80, 0xA8], #"\u{2028}"#), ([0xC2, 0x85], #"\u{85}"#), ([0xF0, 0x9F, 0x99, 0x82], "🙂"),
    ] as [([UInt8], String)]
  )
  func `shows bytes that are no UTF-8`(_ bytes: [UInt8], _ shown: String) {
    var out = [CChar](repeating: 0, count: 64)
    var isWhole = false
    let count = bytes.withUnsafeBytes {
      cco_escape(&out, 64, $0.baseAddress!.assumingMemoryBound(to: CChar.self), bytes.count, true, &isWhole)
    }
    #expect(String(decoding: out.prefix(count).map { UInt8(bitPattern: $0) }, as: UTF8.self) == shown)
    #expect(isWhole)
  }

  // A stall is found by the real clock.
  @Test(.tags(.realClock), arguments: TextRoute.all, Hostile.Length.allCases)
  func `forges no line, and moves no cursor, wherever it appears`(
    _ route: TextRoute,
    _ length: Hostile.Length
  ) async throws {
    let text = try await route.text(length)
    var lines = text.split(separator: "\n", omittingEmptySubsequences: false)
    if lines.last?.isEmpty == true { lines.removeLast() }
    #expect(lines.allSatisfy { Hostile.isHarmless($0) }, "\(text.prefix(2_000))")
    if let count = route.lines { #expect(lines.count == count, "\(text.prefix(2_000))") }
    #expect(text.contains(route.shown), "\(text.prefix(2_000))")
    // A huge text is cut; a report may contain two, and an exploration a few names.
    #expect(text.utf8.count < 80 << 10)
  }
}
