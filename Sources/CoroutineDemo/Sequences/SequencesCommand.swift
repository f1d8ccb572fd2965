#if Demo
import ArgumentParser

/// `CoroutineDemo sequences`: arguments, and what they mean.
struct SequencesCommand: ParsableCommand {
  enum Part: String, CaseIterable, ExpressibleByArgument {
    case fibonacci
    case fringe
    case permutations
    case parser
    case robot
  }

  static let configuration = CommandConfiguration(
    commandName: "sequences",
    abstract: "What generators are for: sequences computed by straight-line code, as far as they are asked for.",
    discussion: """
      fibonacci     numbers without an end, of which some are taken
      fringe        two trees walked side by side, until their leaves differ
      permutations  a recursion that yields at its bottom
      parser        Foundation's event parser, turned into a sequence of typed elements that stops reading when its \
      consumer stops; the document is made up in a temporary file, and memory is reported
      robot         a conversation: each line of the standard input pokes the robot, an empty one just so, and what \
      is said after "Over" decides whether it begins again

      EXIT CODES
        0    all went well
        64   a bad argument
        70   a mistake in this program
        74   the result or the document could not be written
      """
  )

  @Argument(help: "What to show. (default: all of it)")
  var parts: [Part] = []

  @Option(parsing: .unconditional, help: "How many Fibonacci numbers to take.")
  var count = 10

  @Option(help: ArgumentHelp("The letters whose orders are listed, at most eight.", valueName: "text"))
  var letters = "abc"

  @Option(
    parsing: .unconditional,
    help: ArgumentHelp("How large a document the parser reads.", valueName: "megabytes")
  )
  var size = 2

  @Option(
    parsing: .unconditional,
    help: ArgumentHelp(
      "After how many books the parser's consumer stops. (default: after the last)",
      valueName: "books"
    )
  )
  var stop: Int?

  @Option(help: "Whom the robot talks to.")
  var name = "乌卡卡"

  func validate() throws {
    guard (0...93).contains(count) else {
      throw ValidationError("--count is a number from 0 to 93, the last one that fits, not \(count)")
    }
    guard letters.count <= 8 else {
      throw ValidationError("--letters takes at most eight letters, not \(letters.count)")
    }
    guard (1...100_000).contains(size) else {
      throw ValidationError("--size is a number of megabytes from 1 to 100000, not \(size)")
    }
    guard stop ?? 0 >= 0 else { throw ValidationError("--stop is a number of books, not \(stop ?? 0)") }
  }

  func run() throws {
    if let status = SequencesRun(self).run() { throw ExitCode(status.code) }
  }
}
#endif
