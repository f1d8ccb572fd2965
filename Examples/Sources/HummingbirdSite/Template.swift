/// A text with names in braces, which a synchronous visitor visits: `"tea: {tea}"`.
///
/// It stands for the many libraries that call synchronous code: parsers with delegates, visitors of syntax trees.
struct Template: Sendable {
  private enum Part {
    case text(String)
    case name(String)
  }

  private let parts: [Part]

  init(_ source: String) {
    var parts: [Part] = []
    for piece in source.split(separator: "{", omittingEmptySubsequences: false) {
      let halves = piece.split(separator: "}", maxSplits: 1, omittingEmptySubsequences: false)
      if halves.count == 2 { parts.append(.name(String(halves[0]))) }
      parts.append(.text(String(halves[halves.count - 1])))
    }
    self.parts = parts
  }

  func accept(_ visitor: inout some TemplateVisitor) throws {
    for part in parts {
      switch part {
      case .text(let text): try visitor.visit(text: text)
      case .name(let name): try visitor.visit(name: name)
      }
    }
  }
}

protocol TemplateVisitor {
  mutating func visit(text: String) throws
  mutating func visit(name: String) throws
}
