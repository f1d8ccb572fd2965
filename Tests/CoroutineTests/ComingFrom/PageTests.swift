import Glibc
import Testing

/// The pages in docs/coming-from show code in their tables and blocks; this folder compiles and runs that code.
@Suite("What docs/coming-from shows")
struct PageTests {
  @Test(arguments: [
    "pspromise", "easyasync", "promisekit", "rjiterator", "coobjc", "go", "kotlin", "async-await",
  ])
  func `is what is compiled`(name: String) throws {
    let page = try Page("docs/coming-from/\(name).md")
    let sources = try page.sources.map(Page.compact).joined()
    try #require(page.snippets.count >= 10, "The page shows hardly any code; has its layout changed?")
    for snippet in page.snippets {
      #expect(sources.contains(Page.withoutSpace(snippet)), "\(name).md shows \(snippet), which no test compiles.")
    }
  }
}

/// A page of tables `| there | here |`, perhaps with a third column of prose, and of swift blocks.
private struct Page {
  private let lines: [Substring]

  init(_ path: String) throws { lines = try Self.text(path).split(separator: "\n", omittingEmptySubsequences: false) }

  /// The files named in the comment `<!-- compiled: a.swift b.swift -->`: of this folder, or paths from the root.
  var sources: [String] {
    let prefix = "<!-- compiled: "
    let line = lines.first { $0.hasPrefix(prefix) } ?? ""
    return line.dropFirst(prefix.count).split(separator: " ").filter { $0.hasSuffix(".swift") }.map {
      $0.contains("/") ? String($0) : "Tests/CoroutineTests/ComingFrom/\($0)"
    }
  }

  /// Every code span in the second column of a table, and every line of a block.
  var snippets: [String] {
    var snippets: [String] = []
    var isInBlock = false
    for line in lines {
      if line.hasPrefix("```") {
        isInBlock = line == "```swift"
      } else if isInBlock {
        if line.contains(where: { !$0.isWhitespace }) { snippets.append(String(line)) }
      } else if line.hasPrefix("|") {
        snippets += Self.spans(in: Self.secondCell(of: line))
      }
    }
    return snippets
  }

  /// Cells end at a bar, unless a backslash says that it is a bar.
  private static func secondCell(of row: Substring) -> String {
    var cells: [String] = [""]
    for character in row.dropFirst() {
      let isEscaped = cells.last?.last == "\\"
      if character == "|", isEscaped { cells[cells.count - 1].removeLast() }
      if character == "|", !isEscaped { cells.append("") } else { cells[cells.count - 1].append(character) }
    }
    return cells.count > 1 ? cells[1] : ""
  }

  private static func spans(in cell: String) -> [String] {
    cell.split(separator: "`", omittingEmptySubsequences: false).enumerated()
      .filter { !$0.offset.isMultiple(of: 2) }.map { String($0.element) }
  }

  /// Layout is the formatter's business.
  static func withoutSpace(_ text: String) -> String { text.filter { !$0.isWhitespace } }

  static func compact(_ path: String) throws -> String { withoutSpace(try text(path)) }

  private static func text(_ path: String) throws -> String {
    // This file lies three folders below the root.
    let root = "\(#filePath)".split(separator: "/").dropLast(4).map { "/\($0)" }.joined()
    let file = try #require(fopen("\(root)/\(path)", "r"), "\(path) cannot be read")
    defer { fclose(file) }
    var bytes: [UInt8] = []
    var chunk = [UInt8](repeating: 0, count: 65_536)
    while true {
      let count = fread(&chunk, 1, chunk.count, file)
      if count == 0 { return String(decoding: bytes, as: UTF8.self) }
      bytes += chunk[..<count]
    }
  }
}
