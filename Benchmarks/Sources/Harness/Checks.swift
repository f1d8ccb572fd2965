import Glibc

/// Ends the program unless a workload's result is what its operations must have produced.
///
/// A number that was measured while the work was not done is worse than none.
package func expect<Value: Equatable>(
  _ found: Value,
  equals wanted: Value,
  _ what: @autoclosure () -> String,
  file: StaticString = #fileID,
  line: UInt = #line
) {
  if found != wanted { fail("\(what()): expected \(wanted), found \(found)", file: file, line: line) }
}

/// As above, for a condition.
package func expect(
  _ condition: Bool,
  _ what: @autoclosure () -> String,
  file: StaticString = #fileID,
  line: UInt = #line
) {
  if !condition { fail(what(), file: file, line: line) }
}

/// Ends the program with a sentence and exit code 1.
package func fail(_ message: String, file: StaticString = #fileID, line: UInt = #line) -> Never {
  complain("error: wrong result at \(file):\(line): \(message)")
  exit(1)
}

/// Writes a line to standard error, after everything that was printed so far.
package func complain(_ message: String) {
  fflush(nil)
  let line = Array("\(message)\n".utf8)
  _ = write(STDERR_FILENO, line, line.count)
}

/// Keeps the optimiser from proving that `value` is not needed, or what it is.
///
/// Not inlined, so that it has to exist.
@inline(never)
package func blackHole<Value>(_ value: Value) {
  withExtendedLifetime(value) {}
}
