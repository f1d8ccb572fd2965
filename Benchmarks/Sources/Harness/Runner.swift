import Glibc

/// A row's result: the best and the median of all rounds.
package struct Result: Sendable {
  package let figure: Figure
  package let rounds: [Double]
  package let operations: Int

  package var best: Double { rounds.min() ?? .nan }
  package var median: Double { rounds.sorted()[rounds.count / 2] }
}

/// Runs a suite and prints a line for each figure as soon as it is known: owner/row, best and median, between tabs.
package struct Runner {
  private let options: Options

  package init(_ options: Options) { self.options = options }

  private var rounds: Int { options.rounds ?? (options.isQuick ? 1 : 5) }

  /// Runs what was asked for.
  ///
  /// `heading` is printed first, as comment lines.
  package func run(_ suite: Suite, heading: String) throws {
    if options.lists {
      for measurement in suite.measurements { print(measurement.figures[0].name) }
      return
    }
    if let row = options.operationsOf {
      let measurement = suite.measurements.first { $0.figures.contains { $0.name == row } }
      return print(measurement.map(operations) ?? 0)
    }
    if !options.isChild { printHeading(heading) }
    var results: [Result] = []
    for measurement in suite.measurements where measurement.figures.contains(where: { options.wants($0.name) }) {
      for result in try run(measurement) {
        print("\(result.figure.owner)/\(result.figure.name)\t\(shown(result.best))\t\(shown(result.median))")
        fflush(nil)
        results.append(result)
      }
    }
    if let path = options.json { try write(results, to: path) }
    if results.isEmpty, !options.isChild, options.only == nil {
      fail("no row's name contains '\(options.filter ?? "")'; --list prints the names")
    }
  }

  private func operations(_ measurement: Measurement) -> Int {
    options.isQuick ? measurement.quickOperations : measurement.operations
  }

  private func run(_ measurement: Measurement) throws -> [Result] {
    let operations = operations(measurement)
    var collected = measurement.figures.map { _ in [Double]() }
    for _ in 0..<rounds {
      let values =
        measurement.isFresh && !options.isChild
        ? FreshProcess.measure(measurement.figures, options) : try measurement.body(operations)
      if values.isEmpty { return [] }
      expect(values.count, equals: measurement.figures.count, "a number for each figure")
      for (index, value) in values.enumerated() { collected[index].append(value) }
    }
    return zip(measurement.figures, collected).map { Result(figure: $0, rounds: $1, operations: operations) }
  }

  // MARK: Printing

  private func printHeading(_ heading: String) {
    for line in heading.split(separator: "\n") { print("# \(line)") }
    for warning in Machine.warnings { print("# careful: \(warning)") }
    if options.isQuick { print("# quick pass: shows that the workloads work, not how fast they are") }
    print("# row\tbest\tmedian of \(rounds)")
    fflush(nil)
  }

  private func shown(_ value: Double) -> String {
    value.magnitude < 1000 ? "\((value * 10).rounded() / 10)" : "\(Int(value.rounded()))"
  }

  private func write(_ results: [Result], to path: String) throws {
    guard let file = fopen(path, "w") else { fail("cannot write \(path): \(String(cString: strerror(errno)))") }
    defer { fclose(file) }
    let entries = results.map { result in
      """
        {"owner": "\(result.figure.owner)", "row": "\(result.figure.name)", "unit": "\(result.figure.unit)", \
      "best": \(result.best), "median": \(result.median), "rounds": \(result.rounds), "operations": \(result.operations)}
      """
    }
    fputs("[\n\(entries.joined(separator: ",\n"))\n]\n", file)
  }
}
