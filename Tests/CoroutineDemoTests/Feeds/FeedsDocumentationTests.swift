#if Demo
import ArgumentParser
import Foundation
import Testing

@testable import CoroutineDemo

@Suite struct `What Sources/CoroutineDemo/Feeds/README.md promises` {
  @Test func `has a row for every exit code, and so has the help`() throws {
    let document = try Self.document()
    let help = FeedsCommand.helpMessage()
    for code in [0, 20, 21, 64, 70, 71, 73, 74, 130] {
      #expect(document.contains("\n| \(code) |"), "\(code)")
      #expect(help.contains(try Regex("\n +\(code) ")), "\(code)")
    }
  }

  @Test func `names every feed of the built-in server`() throws {
    let document = try Self.document()
    for entry in Catalogue.all { #expect(document.contains(entry.name)) }
  }

  private static func document() throws -> String {
    var root = URL(filePath: #filePath)
    for _ in 1...4 { root.deleteLastPathComponent() }
    return try String(contentsOf: root.appending(path: "Sources/CoroutineDemo/Feeds/README.md"), encoding: .utf8)
  }
}
#endif
