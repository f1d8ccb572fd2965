import Glibc

/// The command line, which all programs of this package share.
package struct Options: Sendable {
  /// Fewer operations and rounds: shows that everything works, not how fast.
  package var isQuick = false
  /// Only rows whose name contains this.
  package var filter: String?
  /// Only the row with this name.
  package var only: String?
  /// Where the results go as JSON.
  package var json: String?
  /// How often each row runs; nil: five times, in quick mode once.
  package var rounds: Int?
  /// Measures every row by processor time: on a machine that others keep busy this repeats better, and for work that
  /// neither waits nor runs on two threads at once it says the same.
  package var countsProcessorTime = false
  /// Prints a name for each measurement, which --only then takes, and ends.
  package var lists = false
  /// Prints how many operations a round of this row does, and ends: for tools that count something else than time.
  package var operationsOf: String?
  /// Started by this very program to measure in a fresh process: prints figures and nothing else.
  package var isChild = false

  /// Reads the arguments; ends the program with a sentence where they make no sense.
  package static func parse(_ arguments: [String] = CommandLine.arguments) -> Options {
    var options = Options()
    var rest = arguments.dropFirst()
    func value(of option: String) -> String {
      guard let value = rest.popFirst() else { usage("\(option) needs a value.") }
      return value
    }
    while let argument = rest.popFirst() {
      switch argument {
      case "--quick": options.isQuick = true
      case "--filter": options.filter = value(of: argument)
      case "--only": options.only = value(of: argument)
      case "--json": options.json = value(of: argument)
      case "--processor-time": options.countsProcessorTime = true
      case "--list": options.lists = true
      case "--child": options.isChild = true
      case "--operations": options.operationsOf = value(of: argument)
      case "--rounds":
        guard let rounds = Int(value(of: argument)), rounds > 0 else { usage("--rounds needs a number from 1 on.") }
        options.rounds = rounds
      default: usage("'\(argument)' is no option.")
      }
    }
    return options
  }

  /// Whether a row of that name was asked for.
  package func wants(_ name: String) -> Bool {
    if let only { return only == name }
    return filter.map(name.contains) ?? true
  }

  private static func usage(_ problem: String) -> Never {
    complain(
      """
      error: \(problem)
      Use: [--quick] [--filter SUBSTRING | --only ROW] [--rounds N] [--processor-time] [--json FILE] [--list]
      """
    )
    exit(2)
  }
}
