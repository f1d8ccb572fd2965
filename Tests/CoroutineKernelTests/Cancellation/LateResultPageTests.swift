import Foundation
import Testing

/// The table of the article CancellationAndTime.md, "A result that comes too late", names the tests that keep its rows.
@Suite("The page about results that come too late", .timeLimit(.minutes(10)))
struct LateResultPageTests {
  @Test func `names tests that exist`() throws {
    // This file lies three folders below the root.
    let root = "\(#filePath)".split(separator: "/").dropLast(4).map { "/\($0)" }.joined()
    let article = "\(root)/Sources/Coroutine/Coroutine.docc/CancellationAndTime.md"
    let page = try String(contentsOfFile: article, encoding: .utf8)
    let section = try #require(page.components(separatedBy: "# A result that comes too late").last)
    let rows = section.split(separator: "\n").filter { $0.hasPrefix("|") }.dropFirst(2)
    try #require(rows.count >= 20, "The table has hardly any row; has its layout changed?")
    var sources = ""
    let files = FileManager.default.enumerator(atPath: "\(root)/Tests")
    while let file = files?.nextObject() as? String {
      guard file.hasSuffix("Tests.swift") else { continue }
      sources += try String(contentsOfFile: "\(root)/Tests/\(file)", encoding: .utf8)
    }
    for row in rows {
      let cell = try #require(row.split(separator: "|").last { $0.contains { $0 != " " } })
      let names = cell.split(separator: "`", omittingEmptySubsequences: false).enumerated()
        .filter { !$0.offset.isMultiple(of: 2) }.map { String($0.element) }
      #expect(!names.isEmpty, "No test is named in: \(row)")
      for name in names { #expect(sources.contains("func `\(name)`"), "\(name)") }
    }
  }
}
