#if Demo
import ArgumentParser
import Foundation

/// `CoroutineDemo items`: lists what `feeds` has stored.
///
/// It waits for nothing, so there is no coroutine in it.
struct ItemsCommand: ParsableCommand {
  static let configuration = CommandConfiguration(
    commandName: "items",
    abstract: "List the items that `feeds` has stored, newest first.",
    discussion: """
      EXIT CODES
        0    all went well, also if there is no such item
        64   a bad argument
        73   the database could not be opened or read
        74   the list could not be written
      """
  )

  @Option(help: ArgumentHelp("Only items that have these words, or words that begin so.", valueName: "text"))
  var search: String?

  @Option(parsing: .unconditional, help: ArgumentHelp("How many to list at most.", valueName: "number"))
  var limit = 50

  @OptionGroup
  var database: DatabaseOption

  func validate() throws {
    guard limit >= 1 else { throw ValidationError("--limit is a number from 1 on, not \(limit)") }
  }

  func run() throws {
    let output = Output.standardOutput()
    let errors = Output.standardError()
    do {
      let library = try Library(path: try database.path())
      var shown = 0
      try library.forEachItem(with: search, limit: limit) { item in
        try output.write(Self.text(of: item))
        shown += 1
      }
      if shown == 0 { errors.note(search == nil ? "Nothing is stored yet.\n" : "No item has these words.\n") }
      if search == nil, case let all = try library.itemCount(), all > shown {
        errors.note("\(all - shown) more; --limit shows more, --search finds.\n")
      }
    } catch let error as OutputError {
      errors.note("CoroutineDemo: \(error).\n")
      throw ExitCode(ExitStatus.notWritten.code)
    } catch {
      errors.note("CoroutineDemo: \(error).\n")
      throw ExitCode(ExitStatus.notStored.code)
    }
  }

  /// Two lines: when and what, then from whom and where.
  private static func text(of item: ListedItem) -> String {
    let date = item.published.map { $0.formatted(.iso8601.year().month().day()) } ?? "          "
    let origin = [item.feed, item.author, item.link].compactMap(\.self).filter { !$0.isEmpty }.joined(separator: ", ")
    return "\(date)  \(item.title)\n            \(origin)\n"
  }
}
#endif
