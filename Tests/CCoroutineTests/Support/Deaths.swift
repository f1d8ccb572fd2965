import CCoroutine
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

extension ExitTest.Condition {
  /// How a stack overflow ends the process.
  ///
  /// AddressSanitizer's own handler, which runs after the report, ends it with an exit code.
  static var overflow: ExitTest.Condition { Machine.hasAddressSanitizer ? .failure : .signal(SIGSEGV) }
}

extension ExitTest.Result {
  /// What the process wrote to standard error.
  var lastWords: String { String(decoding: standardErrorContent, as: UTF8.self) }
}
