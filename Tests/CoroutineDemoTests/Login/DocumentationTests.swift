#if Demo
import Foundation
import Testing

@testable import CoroutineDemo

/// Sources/CoroutineDemo/Login/README.md shows code; it is the code.
@Suite struct `What Sources/CoroutineDemo/Login/README.md shows` {
  @Test(arguments: [
    ("Login/Flow/LoginFlow.swift", "func start()"),
    ("Login/Flow/LoginFlow+Callbacks.swift", "func startWithCallbacks()"),
    ("Shared/HTTP/HTTPSession+Coroutine.swift", "func send("),
  ])
  func `is what is compiled`(file: String, function: String) throws {
    let source = try Self.text("Sources/CoroutineDemo/\(file)")
    let start = try #require(source.range(of: "\n  \(function)"))
    let end = try #require(source[start.upperBound...].range(of: "\n  }\n"))
    let lines = source[start.lowerBound..<end.upperBound].split(separator: "\n", omittingEmptySubsequences: false)
    // In the document it has no indentation.
    let shown = lines.map { $0.hasPrefix("  ") ? $0.dropFirst(2) : $0 }.joined(separator: "\n")
    #expect(try Self.text("Sources/CoroutineDemo/Login/README.md").contains(shown))
  }

  @Test func `has a row for every exit code`() throws {
    let document = try Self.text("Sources/CoroutineDemo/Login/README.md")
    for code in [0, 11, 12, 13, 14, 15, 64, 69, 70, 71, 124, 130] {
      #expect(document.contains("\n| \(code) |"), "\(code)")
    }
  }

  private static func text(_ path: String) throws -> String {
    var root = URL(filePath: #filePath)
    for _ in 1...4 { root.deleteLastPathComponent() }
    return try String(contentsOf: root.appending(path: path), encoding: .utf8)
  }
}
#endif
