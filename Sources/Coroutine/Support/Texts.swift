internal import CCoroutineRuntime

// Texts of users in lines of the library: dumps, reports, errors, messages of misuse.
// `Sources/CCoroutineRuntime/Escape.c` says what is escaped, and why. A text is escaped where it enters a line. To
// escape a line once more changes nothing that is not between quotation marks.

extension String {
  /// The text as a name between quotation marks: escaped, in at most 200 bytes, the last of which are `…` if something
  /// is missing.
  package var asName: String { escaped(atMost: 200, isQuoted: true) }

  /// The text as part of a line, for example a path or a queue's label: escaped, in at most 300 bytes.
  package var asWord: String { escaped(atMost: 300, isQuoted: false) }

  /// A text of any length as part of a line, for example that of an error: escaped, in at most 16 KiB.
  package var asLine: String { escaped(atMost: 16 << 10, isQuoted: false) }

  private func escaped(atMost limit: Int, isQuoted: Bool) -> String {
    var text = self
    return text.withUTF8 { bytes in
      // Nearly always.
      let isPlain =
        bytes.count <= limit
        && bytes.allSatisfy { $0 >= 0x20 && $0 < 0x7F && !(isQuoted && ($0 == 0x22 || $0 == 0x5C)) }
      guard !isPlain, let start = bytes.baseAddress else { return nil }
      // No form of a byte is longer than 6 bytes.
      return String(unsafeUninitializedCapacity: min(limit, 6 * bytes.count)) { out in
        guard let first = out.baseAddress else { return 0 }
        var isWhole = true
        return first.withMemoryRebound(to: CChar.self, capacity: out.count) { out in
          start.withMemoryRebound(to: CChar.self, capacity: bytes.count) {
            cco_escape(out, min(limit, 6 * bytes.count), $0, bytes.count, isQuoted, &isWhole)
          }
        }
      }
    } ?? self
  }
}

/// The name of a type, or another short text that is not a string yet, as part of a line.
package func asWord(_ value: Any) -> String { "\(value)".asWord }

/// The text of an error, or of another value of the user's, as part of a line.
package func asLine(_ value: Any) -> String { "\(value)".asLine }

// MARK: - Misuse

/// Ends the process with a message, also in release builds, which omit the message of a precondition.
@usableFromInline
package func misuse(_ sentence: @autoclosure () -> String, file: StaticString = #fileID, line: UInt = #line) -> Never {
  fatalError(sentence().asLine, file: file, line: line)
}

// MARK: - The namespace of the whole runtime

/// Settings and diagnostics of the whole runtime.
///
/// It is declared here, where nothing is named, so that each folder can add to it: the kernel what it reports, and
/// Inspect the functions.
public enum CoroutineRuntime {}
