import CCoroutine
import Glibc
import Testing

extension ExitTest.Condition {
  /// How a stack overflow ends the process.
  ///
  /// The sanitizers' own handlers, which run after the report, end it with an exit code.
  static var overflow: ExitTest.Condition { Machine.isSanitized ? .failure : .signal(SIGSEGV) }
}

extension ExitTest.Result {
  /// The text that the process wrote to standard error.
  var lastWords: String { String(decoding: standardErrorContent, as: UTF8.self) }
}
